#include "kernels/cuda/temperature_softmax_table.h"

namespace aero::kernels::cuda {

void launch_elements(Float32, const TemperatureSoftmaxForwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_softmax<Float32>(params, queue, error);
}
void launch_elements(Float32, const TemperatureSoftmaxBackwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_softmax<Float32>(params, queue, error);
}

}  // namespace aero::kernels::cuda
