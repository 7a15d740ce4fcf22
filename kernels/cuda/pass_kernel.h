// A pass as a kernel.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device_lane.h"
#include "kernels/cuda/launch.h"

namespace aero::kernels::cuda {

template <class Pass>
__global__ void __launch_bounds__(Pass::kThreads)
    run_pass(const __grid_constant__ typename Pass::Params params) {
  static_assert(Pass::kSharedBytes <= 99 * 1024, "a block on sm_86 has no more");
  DeviceLane lane;
  Pass::run(params, static_cast<int64_t>(blockIdx.x), lane);
}

/// Puts a pass in the queue.
template <class Pass>
void launch_pass(typename Pass::Params params, cudaStream_t queue, LaunchError& error) {
  void* arguments[] = {&params};
  launch_kernel(reinterpret_cast<const void*>(run_pass<Pass>),
                {Pass::block_count(params), Pass::kThreads, Pass::kSharedBytes}, arguments, queue,
                error);
}

}  // namespace aero::kernels::cuda
