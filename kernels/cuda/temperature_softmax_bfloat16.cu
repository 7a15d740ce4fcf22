#include "kernels/cuda/temperature_softmax_table.h"

namespace aero::kernels::cuda {

void launch_elements(BFloat16, const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_softmax<BFloat16>(params, queue, error);
}
void launch_elements(BFloat16, const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_softmax<BFloat16>(params, queue, error);
}

}  // namespace aero::kernels::cuda
