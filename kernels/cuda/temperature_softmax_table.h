// The passes of temperature_softmax as kernels of one element type; included by one file per type.
#pragma once

#include "kernels/cuda/pass_kernel.h"
#include "kernels/cuda/temperature_softmax_kernels.h"
#include "kernels/cuda/temperature_softmax_passes.h"

namespace aero::kernels::cuda {

template <class Element, class Params>
void launch_softmax(const Params& params, cudaStream_t queue, LaunchError& error) {
  with_softmax_pass<Element>(params, [&](auto chosen) {
    launch_pass<typename decltype(chosen)::Pass>(params, queue, error);
  });
}

}  // namespace aero::kernels::cuda
