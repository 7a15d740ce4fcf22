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

/// Puts a pass in the queue. More shared memory than 48 KiB has to be asked for.
template <class Pass>
void launch_pass(const typename Pass::Params& params, cudaStream_t queue, LaunchError& error) {
  const int64_t blocks = Pass::block_count(params);
  if (blocks == 0 || error.code != cudaSuccess) return;
  if (blocks > kMaxBlocks) {
    error.too_many_blocks = true;
    return;
  }
  if constexpr (Pass::kSharedBytes > 48 * 1024)
    error.code = cudaFuncSetAttribute(run_pass<Pass>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      Pass::kSharedBytes);
  if (error.code != cudaSuccess) return;
  run_pass<Pass>
      <<<static_cast<unsigned>(blocks), Pass::kThreads, Pass::kSharedBytes, queue>>>(params);
  error.code = cudaGetLastError();
}

}  // namespace aero::kernels::cuda
