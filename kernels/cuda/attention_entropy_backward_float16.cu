#include "kernels/cuda/attention_entropy_table.h"

namespace aero::kernels::cuda {

void launch_elements(Float16, const BackwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_passes<Float16>(params, queue, error);
}

}  // namespace aero::kernels::cuda
