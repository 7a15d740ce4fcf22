#include "kernels/cuda/attention_entropy_table.h"

namespace aero::kernels::cuda {

void launch_elements(TensorFloat32, const AttentionEntropyForwardParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_passes<TensorFloat32>(params, queue, error);
}

}  // namespace aero::kernels::cuda
