#include "kernels/cuda/entropy_regularization_kernels.h"
#include "kernels/cuda/pass_kernel.h"

namespace aero::kernels::cuda {

void launch_penalty(const EntropyPenaltyParams& params, cudaStream_t queue, LaunchError& error) {
  launch_pass<EntropyPenaltyPass>(params, queue, error);
}
void launch_gradients(const EntropyRegularizationBackwardParams& params, cudaStream_t queue,
                      LaunchError& error) {
  launch_pass<EntropyGradientPass>(params, queue, error);
}

}  // namespace aero::kernels::cuda
