// The scaled feed-forward layer on a GPU: a call that cannot be launched is an error in words.
#include "kernels/scaled_ffn.h"

#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/scaled_ffn_kernels.h"

namespace aero::kernels::cuda {
namespace {

constexpr const char* kOp = "scaled_ffn";

template <class Params>
void check(const Params& p) {
  check_type(kOp, "weight", p.data_type);
  if (p.width > kMaxPositions)
    refuse(kOp, "C must be at most " + std::to_string(kMaxPositions) + " on CUDA, got " +
                    std::to_string(p.width));
}

/// Where the scales lie: behind the scratch memory of the product, which wants to be aligned most.
constexpr size_t kScaledBiasOffset = kProductWorkspaceBytes + 256;

}  // namespace

size_t workspace_bytes(const ScaledFfnProductParams& params) {
  return kScaledBiasOffset + static_cast<size_t>(params.width * element_bytes(params.stream_type));
}
size_t workspace_bytes(const ScaledFfnGradientParams& params) {
  return static_cast<size_t>(ScaledFfnReductionParams::bytes(params));
}

bool launch(const ScaledFfnProductParams& params, void* workspace, const Queue& queue) {
  check(params);
  if (params.rows == 0 || params.width == 0) return true;
  auto* memory = static_cast<char*>(workspace);
  ScaledFfnScaleParams scales{};
  scales.alpha = static_cast<const float*>(params.alpha);
  scales.bias = params.bias;
  scales.width = params.width;
  scales.inverse_alpha = reinterpret_cast<float*>(memory + kProductWorkspaceBytes);
  scales.scaled_bias = memory + kScaledBiasOffset;

  MatrixProductParams product;
  product.data_type = params.data_type;
  product.stream_type = params.stream_type;
  product.rows = params.rows;
  product.width = params.width;
  product.a = params.operand;
  product.weight = params.weight;
  product.weight_is_transposed = params.weight_is_transposed;
  product.addend = params.x;
  product.bias = params.bias ? scales.scaled_bias : nullptr;
  product.factor = scales.inverse_alpha;
  product.addend_factor = params.beta;
  product.y = params.y;
  product.allow_tf32 = params.allow_tf32;
  product.workspace = workspace;
  bool is_done = false;
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    const CublasLt library = cublas_lt_of(kOp, queue.device);
    launch_scales(scales, params.data_type, params.stream_type, stream, error);
    if (error.code == cudaSuccess) is_done = multiply_matrices(kOp, library, product, stream);
  });
  return is_done;
}

void launch(const ScaledFfnGradientParams& params, void* workspace, const Queue& queue) {
  check(params);
  const ScaledFfnReductionParams with_workspace(params, workspace);
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    launch_of_type(with_workspace, stream, error);
  });
}

}  // namespace aero::kernels::cuda
