// The kernels of one element type each, as the launcher calls them.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_backward_rows.h"

namespace aero::kernels::cuda {

/// Blocks of a grid.
inline constexpr int64_t kMaxBlocks = 2'147'483'647;

/// The first thing that went wrong in a call.
struct LaunchError {
  cudaError_t code = cudaSuccess;
  bool too_many_blocks = false;
};

// Defined in attention_entropy_<type>.cu.
void launch_bfloat16(const AttentionEntropyForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_bfloat16(const BackwardParams& params, cudaStream_t queue, LaunchError& error);
void launch_float16(const AttentionEntropyForwardParams& params, cudaStream_t queue,
                    LaunchError& error);
void launch_float16(const BackwardParams& params, cudaStream_t queue, LaunchError& error);
void launch_float32(const AttentionEntropyForwardParams& params, cudaStream_t queue,
                    LaunchError& error);
void launch_float32(const BackwardParams& params, cudaStream_t queue, LaunchError& error);

}  // namespace aero::kernels::cuda
