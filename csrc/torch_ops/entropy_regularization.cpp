#include "kernels/entropy_regularization.h"

#include <cmath>

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "entropy_regularization";

/// Checked inputs; the operands keep the memory of the params alive.
struct Inputs {
  Gate gate;
  Operand entropies, thresholds, max_entropy, row_mask;
  kernels::EntropyRegularizationParams params;

  Inputs(const Tensor& entropies_any, const Tensor& thresholds_any, const Tensor& max_entropy_any,
         const OptionalTensor& row_mask_any, double margin, bool query_mean)
      : gate(kOp, "entropies", entropies_any, 4, "[L, B, H, T]") {
    require_possible(kOp, "L * B * H * T", entropies_any.numel());
    const bool is_double = entropies_any.scalar_type() == ScalarType::Double;
    const ScalarType type = is_double ? ScalarType::Double : ScalarType::Float;
    const Shape sizes = shape_of(entropies_any), rows = {sizes[1], sizes[3]};
    entropies = gate.take(entropies_any, {"entropies", sizes, "", type,
                                          is_double ? "" : " or float64", Layout::kAny});
    thresholds = gate.take(thresholds_any, {"thresholds",
                                            {sizes[0], sizes[2]},
                                            "[L, H]",
                                            type,
                                            " like entropies",
                                            Layout::kContiguous});
    max_entropy =
        gate.broadcast(max_entropy_any, {"max_entropy", rows, "[B, T]", type, " like entropies"});
    row_mask = gate.take(row_mask_any, {"row_mask", rows, "[B, T]", ScalarType::Bool,
                                        " (true where the row counts)", Layout::kAny});
    if (!(margin >= 0) || !std::isfinite(margin))
      refuse(kOp, "margin", "a finite number, at least 0", std::to_string(margin));

    params.data_type = gate.data_type();
    params.layers = sizes[0];
    params.batch = sizes[1];
    params.heads = sizes[2];
    params.queries = sizes[3];
    params.entropies = entropies.view({.batch = entropies.stride(1),
                                       .head = entropies.stride(2),
                                       .row = entropies.stride(3),
                                       .layer = entropies.stride(0)});
    params.thresholds = thresholds.data();
    const auto of_rows = [](const Operand& operand) {
      return kernels::Strides{.batch = operand.stride(0), .row = operand.stride(1)};
    };
    params.max_entropy = max_entropy.view(of_rows(max_entropy));
    params.row_mask = row_mask.view<bool>(of_rows(row_mask));
    params.margin = margin;
    params.reduction = query_mean ? kernels::EntropyReduction::kQueryMean
                                  : kernels::EntropyReduction::kPositionSum;
  }
};

/// Does a call where its tensors are: on torch's threads, or in torch's stream.
void run_where_it_is(const kernels::EntropyRegularizationForwardParams& params,
                     [[maybe_unused]] const Tensor& entropies) {
#if defined(AERO_CUDA)
  if (entropies.is_cuda()) {
    const Result workspace(entropies,
                           {static_cast<int64_t>(kernels::cuda::workspace_bytes(params))},
                           ScalarType::Byte);
    return kernels::cuda::launch(params, workspace.data(), CudaQueue(kOp, entropies).get());
  }
#endif
  const Workspace workspace = run_parallel(params);
  kernels::cpu::finish(params, workspace.data());
}
void run_where_it_is(const kernels::EntropyRegularizationBackwardParams& params,
                     [[maybe_unused]] const Tensor& entropies) {
#if defined(AERO_CUDA)
  if (entropies.is_cuda()) return kernels::cuda::launch(params, CudaQueue(kOp, entropies).get());
#endif
  run_parallel(params);
}

}  // namespace

Tensor entropy_regularization(const Tensor& entropies, const Tensor& thresholds,
                              const Tensor& max_entropy, const OptionalTensor& row_mask,
                              double margin, bool query_mean) {
  const Inputs inputs(entropies, thresholds, max_entropy, row_mask, margin, query_mean);
  const Result loss(entropies, {}, entropies.scalar_type());
  kernels::EntropyRegularizationForwardParams params;
  static_cast<kernels::EntropyRegularizationParams&>(params) = inputs.params;
  params.loss = loss.data();
  run_where_it_is(params, entropies);
  return loss.tensor();
}

std::tuple<Tensor, Tensor> entropy_regularization_backward(
    const Tensor& dloss, const Tensor& entropies, const Tensor& thresholds,
    const Tensor& max_entropy, const OptionalTensor& row_mask, double margin, bool query_mean) {
  const Inputs inputs(entropies, thresholds, max_entropy, row_mask, margin, query_mean);
  const ScalarType type = entropies.scalar_type();
  const Operand gradient =
      inputs.gate.take(dloss, {"dloss", {}, "a scalar", type, " like entropies", Layout::kAny});
  const Result dentropies(entropies, shape_of(entropies), type);
  const Result dthresholds(entropies, shape_of(thresholds), type);
  kernels::EntropyRegularizationBackwardParams params;
  static_cast<kernels::EntropyRegularizationParams&>(params) = inputs.params;
  params.dloss = gradient.data();
  params.dentropies = dentropies.data();
  params.dthresholds = dthresholds.data();
  run_where_it_is(params, entropies);
  return {dentropies.tensor(), dthresholds.tensor()};
}

}  // namespace aero::torch_ops
