// What temperature_softmax and attention_entropy have per row of the attention matrix: results,
// statistics kept for the backward pass, and gradients.
#pragma once

#include "csrc/torch_ops/tensor_checks.h"
#include "kernels/layout.h"

namespace aero::torch_ops {

/// Entropy and logsumexp, [B, H, T], and kept statistics, [B, H, 3, T], for a kernel to fill.
struct RowResults {
  Tensor entropy, logsumexp, statistics;

  RowResults(const Tensor& like, const Rows& rows, ScalarType type)
      : entropy(empty(like, {rows.batch, rows.heads, rows.queries}, type)),
        logsumexp(empty(like, {rows.batch, rows.heads, rows.queries}, type)),
        statistics(
            empty(like, {rows.batch, rows.heads, kernels::kSavedStatistics, rows.queries}, type)) {}

  template <class ForwardParams>
  void pass_to(ForwardParams& params) const {
    params.entropy = entropy.mutable_data_ptr();
    params.logsumexp = logsumexp.mutable_data_ptr();
    params.statistics = statistics.mutable_data_ptr();
  }
};

/// What a backward pass is given per row.
struct IncomingRows {
  const Tensor& statistics;
  const std::optional<Tensor>&dentropy, &dlogsumexp;
};

/// The same, checked and contiguous, and room for the gradient of the temperature in each row.
class RowGradients {
 public:
  RowGradients(const char* op, const Tensor& like, const Rows& rows, ScalarType type,
               const IncomingRows& incoming, bool needs_temperature)
      : statistics_(checked_statistics(op, incoming.statistics, rows, type)),
        dentropy_(row_gradient(op, "dentropy", incoming.dentropy, type, rows)),
        dlogsumexp_(row_gradient(op, "dlogsumexp", incoming.dlogsumexp, type, rows)),
        needs_temperature_(needs_temperature),
        dtemperature_(needs_temperature ? empty(like, {rows.batch, rows.heads, rows.queries}, type)
                                        : empty(like, {0}, type)) {}

  template <class BackwardParams>
  void pass_to(BackwardParams& params) const {
    params.statistics = statistics_.const_data_ptr();
    params.dentropy = data_or_null(dentropy_);
    params.dlogsumexp = data_or_null(dlogsumexp_);
    if (needs_temperature_) params.dtemperature = dtemperature_.mutable_data_ptr();
  }
  /// The gradient in the temperature's shape; empty where it is not wanted.
  Tensor dtemperature(const std::optional<Tensor>& temperature) const {
    return needs_temperature_ && temperature ? sum_to_temperature(dtemperature_, *temperature)
                                             : dtemperature_;
  }

 private:
  static Tensor checked_statistics(const char* op, const Tensor& statistics, const Rows& rows,
                                   ScalarType type) {
    require_shape(op, "statistics", statistics,
                  {rows.batch, rows.heads, kernels::kSavedStatistics, rows.queries},
                  "[B, H, 3, T]");
    require_dtype(op, "statistics", statistics, type, "");
    return torch::stable::contiguous(statistics);
  }

  Tensor statistics_;
  std::optional<Tensor> dentropy_, dlogsumexp_;
  bool needs_temperature_;
  Tensor dtemperature_;
};

}  // namespace aero::torch_ops
