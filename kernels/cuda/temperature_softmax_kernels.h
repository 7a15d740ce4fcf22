// The kernels of one element type each, as the launcher calls them.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cuda {

// Defined in temperature_softmax_<type>.cu.
void launch_bfloat16(const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_bfloat16(const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_float16(const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                    LaunchError& error);
void launch_float16(const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                    LaunchError& error);
void launch_float32(const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                    LaunchError& error);
void launch_float32(const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                    LaunchError& error);

}  // namespace aero::kernels::cuda
