#include "kernels/entropy_regularization.h"

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "entropy_regularization";

/// Strides of a tensor that broadcasts to [B, T]; false where it does not.
bool broadcast_strides(const Tensor& tensor, int64_t batch, int64_t queries, int64_t& batch_stride,
                       int64_t& row_stride) {
  if (tensor.dim() == 0) return true;
  if (tensor.dim() != 2) return false;
  batch_stride = tensor.size(0) == 1 ? 0 : tensor.stride(0);
  row_stride = tensor.size(1) == 1 ? 0 : tensor.stride(1);
  return (tensor.size(0) == batch || tensor.size(0) == 1) &&
         (tensor.size(1) == queries || tensor.size(1) == 1);
}

/// Checked inputs; `thresholds` keeps alive what the params point to.
struct Inputs {
  Tensor thresholds;
  kernels::EntropyRegularizationParams params;

  Inputs(const Tensor& entropies, const Tensor& thresholds_any, const Tensor& max_entropy,
         const OptionalTensor& row_mask, double margin, bool query_mean)
      : thresholds(torch::stable::contiguous(checked(entropies, thresholds_any))) {
    const ScalarType type = entropies.scalar_type();
    params.data_type = data_type_of(kOp, "entropies", entropies);
    params.layers = entropies.size(0);
    params.batch = entropies.size(1);
    params.heads = entropies.size(2);
    params.queries = entropies.size(3);
    params.entropies = entropies.const_data_ptr();
    params.entropies_layer_stride = entropies.stride(0);
    params.entropies_strides = {entropies.stride(1), entropies.stride(2), entropies.stride(3)};
    params.thresholds = thresholds.const_data_ptr();

    const std::vector<int64_t> rows = {params.batch, params.queries};
    require_device(kOp, "max_entropy", max_entropy, entropies, "entropies");
    if (row_mask) require_device(kOp, "row_mask", *row_mask, entropies, "entropies");
    require_dtype(kOp, "max_entropy", max_entropy, type, " like entropies");
    if (!broadcast_strides(max_entropy, params.batch, params.queries,
                           params.max_entropy_batch_stride, params.max_entropy_row_stride))
      refuse(kOp, "max_entropy", "a scalar or broadcastable to [B, T] = " + shape_text(rows),
             shape_text(shape_of(max_entropy)));
    params.max_entropy = max_entropy.const_data_ptr();
    if (row_mask) {
      require_dtype(kOp, "row_mask", *row_mask, ScalarType::Bool, " (true where the row counts)");
      require_shape(kOp, "row_mask", *row_mask, rows, "[B, T]");
      params.row_mask = row_mask->const_data_ptr<bool>();
      params.row_mask_batch_stride = row_mask->stride(0);
      params.row_mask_row_stride = row_mask->stride(1);
    }
    if (!(margin >= 0)) refuse(kOp, "margin", "at least 0", std::to_string(margin));
    params.margin = margin;
    params.reduction = query_mean ? kernels::EntropyReduction::kQueryMean
                                  : kernels::EntropyReduction::kPositionSum;
  }

 private:
  static Tensor checked(const Tensor& entropies, const Tensor& thresholds) {
    require_dim(kOp, "entropies", entropies, 4, "[L, B, H, T]");
    require_possible(kOp, "L * B * H * T", entropies.numel());
    const ScalarType type = entropies.scalar_type();
    if (type != ScalarType::Double)
      require_dtype(kOp, "entropies", entropies, ScalarType::Float, " or float64");
    require_shape(kOp, "thresholds", thresholds, {entropies.size(0), entropies.size(2)}, "[L, H]");
    require_dtype(kOp, "thresholds", thresholds, type, " like entropies");
    require_device(kOp, "thresholds", thresholds, entropies, "entropies");
    return thresholds;
  }
};

/// Does a call where its tensors are: on torch's threads, or in torch's stream.
void run_where_it_is(const kernels::EntropyRegularizationForwardParams& params,
                     [[maybe_unused]] const Tensor& entropies) {
#if defined(AERO_CUDA)
  if (entropies.is_cuda()) {
    const Tensor workspace =
        empty(entropies, {static_cast<int64_t>(kernels::cuda::workspace_bytes(params))},
              ScalarType::Byte);
    return kernels::cuda::launch(params, workspace.mutable_data_ptr(),
                                 CudaQueue(kOp, entropies).get());
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
  const Tensor loss = empty(entropies, {}, entropies.scalar_type());
  kernels::EntropyRegularizationForwardParams params;
  static_cast<kernels::EntropyRegularizationParams&>(params) = inputs.params;
  params.loss = loss.mutable_data_ptr();
  run_where_it_is(params, entropies);
  return loss;
}

std::tuple<Tensor, Tensor> entropy_regularization_backward(
    const Tensor& dloss, const Tensor& entropies, const Tensor& thresholds,
    const Tensor& max_entropy, const OptionalTensor& row_mask, double margin, bool query_mean) {
  const Inputs inputs(entropies, thresholds, max_entropy, row_mask, margin, query_mean);
  require_shape(kOp, "dloss", dloss, {}, "a scalar");
  require_dtype(kOp, "dloss", dloss, entropies.scalar_type(), " like entropies");
  require_device(kOp, "dloss", dloss, entropies, "entropies");
  const Tensor dentropies = empty(entropies, shape_of(entropies), entropies.scalar_type());
  const Tensor dthresholds = empty(thresholds, shape_of(thresholds), thresholds.scalar_type());
  kernels::EntropyRegularizationBackwardParams params;
  static_cast<kernels::EntropyRegularizationParams&>(params) = inputs.params;
  params.dloss = dloss.const_data_ptr();
  params.dentropies = dentropies.mutable_data_ptr();
  params.dthresholds = dthresholds.mutable_data_ptr();
  run_where_it_is(params, entropies);
  return {dentropies, dthresholds};
}

}  // namespace aero::torch_ops
