// The kernels of one element type each, as the launcher calls them.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cuda {

// Defined in temperature_softmax_<type>.cu.
void launch_elements(BFloat16, const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(BFloat16, const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float16, const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float16, const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float32, const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                     LaunchError& error);
void launch_elements(Float32, const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                     LaunchError& error);

}  // namespace aero::kernels::cuda
