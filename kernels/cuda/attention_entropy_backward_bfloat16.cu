#include "kernels/cuda/attention_entropy_table.h"

namespace aero::kernels::cuda {

void launch_elements(BFloat16, const BackwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_passes<BFloat16>(params, queue, error);
}

}  // namespace aero::kernels::cuda
