#include "kernels/cuda/pass_kernel.h"
#include "kernels/cuda/scaled_ffn_kernels.h"

namespace aero::kernels::cuda {
namespace {

template <class Element>
void launch_scales_of(const ScaledFfnScaleParams& params, DataType stream_type, cudaStream_t queue,
                      LaunchError& error) {
  if (stream_type == Element::kDataType)
    launch_pass<ScaledFfnScalePass<Element, Element>>(params, queue, error);
  else
    launch_pass<ScaledFfnScalePass<Element, Float32>>(params, queue, error);
}

template <class Element>
void launch_reductions(const ScaledFfnReductionParams& params, cudaStream_t queue,
                       LaunchError& error) {
  // The first clears what counts the blocks of the second, also where it has nothing to add up.
  launch_pass<ScaledFfnSumsPass<Element>>(params, queue, error);
  launch_pass<ScaledFfnScalarsPass<Element>>(params, queue, error);
}

}  // namespace

void launch_scales(const ScaledFfnScaleParams& params, DataType type, DataType stream_type,
                   cudaStream_t queue, LaunchError& error) {
  if (type == DataType::kBFloat16)
    launch_scales_of<BFloat16>(params, stream_type, queue, error);
  else if (type == DataType::kFloat16)
    launch_scales_of<Float16>(params, stream_type, queue, error);
  else
    launch_scales_of<Float32>(params, stream_type, queue, error);
}

void launch_elements(BFloat16, const ScaledFfnReductionParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_reductions<BFloat16>(params, queue, error);
}
void launch_elements(Float16, const ScaledFfnReductionParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_reductions<Float16>(params, queue, error);
}
void launch_elements(Float32, const ScaledFfnReductionParams& params, cudaStream_t queue,
                     LaunchError& error) {
  launch_reductions<Float32>(params, queue, error);
}

}  // namespace aero::kernels::cuda
