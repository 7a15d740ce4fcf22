// Entropy penalty on a GPU: a call that cannot be launched is an error in words.
#include "kernels/entropy_regularization.h"

#include "kernels/cuda/entropy_regularization_kernels.h"

namespace aero::kernels::cuda {
namespace {

constexpr const char* kOp = "entropy_regularization";

void check(const EntropyRegularizationParams& p) {
  if (p.data_type != DataType::kFloat32)
    refuse(kOp, std::string("entropies must be float32 on CUDA, got ") +
                    (p.data_type == DataType::kFloat64 ? "float64" : "half precision"));
  if (p.queries > kMaxPositions)
    refuse(kOp, "T must be at most " + std::to_string(kMaxPositions) + " on CUDA, got " +
                    std::to_string(p.queries));
}

}  // namespace

size_t workspace_bytes(const EntropyRegularizationForwardParams& params) {
  return static_cast<size_t>(EntropyPenaltyParams::bytes(params));
}

void launch(const EntropyRegularizationForwardParams& params, void* workspace, const Queue& queue) {
  check(params);
  const EntropyPenaltyParams with_workspace(params, workspace);
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    error.code = cudaMemsetAsync(with_workspace.arrived, 0, sizeof(uint32_t), stream);
    launch_penalty(with_workspace, stream, error);
  });
}

void launch(const EntropyRegularizationBackwardParams& params, const Queue& queue) {
  check(params);
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    launch_gradients(params, stream, error);
  });
}

}  // namespace aero::kernels::cuda
