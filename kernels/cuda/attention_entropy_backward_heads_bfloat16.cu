#include "kernels/cuda/attention_entropy_table.h"

namespace aero::kernels::cuda {

template <class Shape>
void launch_head_pass(const BackwardParams& params, cudaStream_t queue, LaunchError& error) {
  launch_pass<BackwardHeadPass<Shape>>(params, queue, error);
}
template void launch_head_pass<HeadShape<BFloat16, 32>>(const BackwardParams&, cudaStream_t,
                                                        LaunchError&);
template void launch_head_pass<HeadShape<BFloat16, 64>>(const BackwardParams&, cudaStream_t,
                                                        LaunchError&);

}  // namespace aero::kernels::cuda
