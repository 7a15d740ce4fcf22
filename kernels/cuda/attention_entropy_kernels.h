// The kernels of one element type each, as the launcher calls them.
#pragma once

#include "kernels/cuda/attention_backward_rows.h"
#include "kernels/cuda/launch.h"

namespace aero::kernels::cuda {

// Defined in attention_entropy_<type>.cu.
void launch_elements(BFloat16, const AttentionEntropyForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(BFloat16, const BackwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float16, const AttentionEntropyForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float16, const BackwardParams& params, cudaStream_t queue, LaunchError& error);
void launch_elements(Float32, const AttentionEntropyForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float32, const BackwardParams& params, cudaStream_t queue, LaunchError& error);
void launch_elements(TensorFloat32, const AttentionEntropyForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(TensorFloat32, const BackwardParams& params, cudaStream_t queue,
                     LaunchError& error);

}  // namespace aero::kernels::cuda
