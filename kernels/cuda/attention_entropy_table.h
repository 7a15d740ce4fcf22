// The passes of attention as kernels of one element type; included by one file per type, so that
// they compile apart.
#pragma once

#include "kernels/cuda/attention_entropy_kernels.h"
#include "kernels/cuda/attention_entropy_passes.h"
#include "kernels/cuda/pass_kernel.h"

namespace aero::kernels::cuda {

template <class Element>
void launch_passes(const AttentionEntropyForwardParams& params, cudaStream_t queue,
                   LaunchError& error) {
  with_forward_pass<Element>(params, [&](auto chosen) {
    launch_pass<typename decltype(chosen)::Pass>(params, queue, error);
  });
}
template <class Element>
void launch_passes(const BackwardParams& params, cudaStream_t queue, LaunchError& error) {
  for_backward_passes<Element>(params, [&](auto chosen) {
    launch_pass<typename decltype(chosen)::Pass>(params, queue, error);
  });
}

}  // namespace aero::kernels::cuda
