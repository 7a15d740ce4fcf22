// The values of temperature_softmax and attention_entropy per row of the attention matrix: results,
// statistics kept for the backward pass, and gradients.
#pragma once

#include "csrc/torch_ops/tensor_checks.h"
#include "kernels/layout.h"

namespace aero::torch_ops {

/// A mask that broadcasts to [B, H, T, S].
inline Operand visibility_mask(const Gate& gate, const OptionalTensor& mask, const Rows& rows) {
  return gate.broadcast(mask, {"mask",
                               {rows.batch, rows.heads, rows.queries, rows.keys},
                               "[B, H, T, S]",
                               ScalarType::Bool,
                               " (true where the query sees the key)"});
}

/// Entropy and logsumexp, [B, H, T], and kept statistics, [B, H, 3, T], for a kernel to fill.
struct RowResults {
  Result entropy, logsumexp, statistics;

  RowResults(const Tensor& like, const Rows& rows, ScalarType type)
      : entropy(like, rows.shape(), type),
        logsumexp(like, rows.shape(), type),
        statistics(like, {rows.batch, rows.heads, kernels::kSavedStatistics, rows.queries}, type) {}

  template <class ForwardParams>
  void pass_to(ForwardParams& params) const {
    params.entropy = entropy.data();
    params.logsumexp = logsumexp.data();
    params.statistics = statistics.data();
  }
};

/// What comes back to the largest score of each row, and the key that has it.
class LargestRows {
 public:
  LargestRows(const Gate& gate, const Rows& rows, ScalarType type,
              const OptionalTensor& dmax_logits, const OptionalTensor& largest_key)
      : dmax_logits_(gate.take(dmax_logits, {"dmax_logits", rows.shape(), "[B, H, T]", type, "",
                                             Layout::kContiguous})),
        largest_key_(gate.take(largest_key, {"largest_key", rows.shape(), "[B, H, T]",
                                             ScalarType::Long, "", Layout::kContiguous})) {
    if (dmax_logits_ && !largest_key_)
      refuse("attention_entropy", "largest_key", "given with dmax_logits", "none");
  }

  template <class BackwardParams>
  void pass_to(BackwardParams& params) const {
    params.dmax_logits = dmax_logits_.data();
    params.largest_key = static_cast<const int64_t*>(largest_key_.data());
  }

 private:
  Operand dmax_logits_, largest_key_;
};

/// The inputs of a backward pass per row.
struct IncomingRows {
  const Tensor& statistics;
  const OptionalTensor &dentropy, &dlogsumexp;
};

/// The same, through the gate, and room for the gradient of the temperature in each row.
class RowGradients {
 public:
  RowGradients(const Gate& gate, const Tensor& like, const Rows& rows, ScalarType type,
               const IncomingRows& incoming, bool needs_temperature)
      : statistics_(gate.take(incoming.statistics,
                              {"statistics",
                               {rows.batch, rows.heads, kernels::kSavedStatistics, rows.queries},
                               "[B, H, 3, T]",
                               type,
                               "",
                               Layout::kContiguous})),
        dentropy_(gate.take(incoming.dentropy, gradient("dentropy", rows, type))),
        dlogsumexp_(gate.take(incoming.dlogsumexp, gradient("dlogsumexp", rows, type))),
        dtemperature_(like, rows.shape(), type, needs_temperature) {}

  template <class BackwardParams>
  void pass_to(BackwardParams& params) const {
    params.statistics = statistics_.data();
    params.dentropy = dentropy_.data();
    params.dlogsumexp = dlogsumexp_.data();
    params.dtemperature = dtemperature_.data();
  }
  /// The gradient in the temperature's shape; empty where it is not wanted.
  Tensor dtemperature(const OptionalTensor& temperature, bool needs_temperature) const {
    return needs_temperature && temperature
               ? sum_to_temperature(dtemperature_.tensor(), *temperature)
               : dtemperature_.tensor();
  }

 private:
  static Wanted gradient(const char* name, const Rows& rows, ScalarType type) {
    return {name, rows.shape(), "[B, H, T]", type, "", Layout::kContiguous};
  }

  Operand statistics_, dentropy_, dlogsumexp_;
  Result dtemperature_;
};

}  // namespace aero::torch_ops
