// The passes of attention as kernels of one element type; included by one file per type and
// direction, so that they compile apart.
#pragma once

#include "kernels/cuda/attention_entropy_kernels.h"
#include "kernels/cuda/attention_entropy_passes.h"
#include "kernels/cuda/pass_kernel.h"

namespace aero::kernels::cuda {

/// The pass that does whole heads, defined in attention_entropy_backward_heads_<type>.cu.
template <class Shape>
void launch_head_pass(const BackwardParams& params, cudaStream_t queue, LaunchError& error);

template <class Pass, class Params>
void launch_chosen(Chosen<Pass>, const Params& params, cudaStream_t queue, LaunchError& error) {
  launch_pass<Pass>(params, queue, error);
}
template <class Shape, class Params>
void launch_chosen(Chosen<BackwardHeadPass<Shape>>, const Params& params, cudaStream_t queue,
                   LaunchError& error) {
  launch_head_pass<Shape>(params, queue, error);
}

template <class Element>
void launch_passes(const AttentionEntropyForwardParams& params, cudaStream_t queue,
                   LaunchError& error) {
  with_forward_pass<Element>(params,
                             [&](auto chosen) { launch_chosen(chosen, params, queue, error); });
}
template <class Element>
void launch_passes(const BackwardParams& params, cudaStream_t queue, LaunchError& error) {
  for_backward_passes<Element>(params,
                               [&](auto chosen) { launch_chosen(chosen, params, queue, error); });
}

}  // namespace aero::kernels::cuda
