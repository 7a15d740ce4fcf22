// The kernels as the launcher calls them.
#pragma once

#include "kernels/cuda/entropy_regularization_passes.h"
#include "kernels/cuda/launch.h"

namespace aero::kernels::cuda {

// Defined in entropy_regularization.cu.
void launch_penalty(const EntropyPenaltyParams& params, cudaStream_t queue, LaunchError& error);
void launch_gradients(const EntropyRegularizationBackwardParams& params, cudaStream_t queue,
                      LaunchError& error);

}  // namespace aero::kernels::cuda
