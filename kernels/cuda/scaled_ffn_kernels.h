// The kernels as the launcher calls them.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scaled_ffn_passes.h"

namespace aero::kernels::cuda {

// Defined in scaled_ffn.cu.
void launch_scales(const ScaledFfnScaleParams& params, DataType type, DataType stream_type,
                   cudaStream_t queue, LaunchError& error);
void launch_elements(BFloat16, const ScaledFfnReductionParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float16, const ScaledFfnReductionParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float32, const ScaledFfnReductionParams& params, cudaStream_t queue,
                     LaunchError& error);

}  // namespace aero::kernels::cuda
