// The inputs of attention_entropy and of its gradients: what is checked, and the params of a
// kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/torch_ops/float32_precision.h"
#include "csrc/torch_ops/packed_sequences.h"
#include "csrc/torch_ops/row_values.h"
#include "csrc/torch_ops/tensor_checks.h"
#include "kernels/attention_entropy.h"

namespace aero::torch_ops::attention {

inline constexpr const char* kOp = "attention_entropy";

/// What a call may do beside the plain attention.
struct Variants {
  std::optional<int64_t> window_left, window_right;
  std::optional<double> softcap;
  const OptionalTensor &bias, &alibi_slopes, &sinks, &dropout_seeds;
  double dropout_p;
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
  bool has_max_logits;
};

/// Checked inputs; the operands keep the memory of the params alive.
struct Inputs {
  Gate gate;
  Rows rows;
  ScalarType statistics;
  Operand q, k, v, temperature, mask, bias, alibi_slopes, sinks, dropout_seeds;
  kernels::AttentionEntropyParams params;
  std::optional<PackedSequences> sequences;

  Inputs(const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
         const OptionalTensor& temperature_any, const OptionalTensor& mask_any, bool is_causal,
         std::optional<double> scale, const Variants& variants)
      : gate(kOp, "q", q_any, 4, "[B, H, T, D]"),
        rows(checked_rows(q_any, k_any, v_any, scale)),
        statistics(statistics_type(gate.data_type())),
        q(gate.take(q_any, {"q", shape_of(q_any), "[B, H, T, D]", q_any.scalar_type(), ""})),
        k(gate.take(k_any, of_keys(q_any, k_any))),
        v(gate.take(v_any, of_values(k_any, v_any, q_any))) {
    params.data_type = gate.data_type();
    params.batch = rows.batch;
    params.heads = rows.heads;
    params.key_heads = k_any.size(1);
    params.queries = rows.queries;
    params.keys = rows.keys;
    params.head_dim = q_any.size(3);
    params.value_dim = v_any.size(3);
    params.q = q.view();
    params.k = k.view();
    params.v = v.view();
    params.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(params.head_dim));
    temperature = gate.temperature(temperature_any, statistics, rows);
    params.temperature = temperature.view();
    params.is_causal = is_causal;
    mask = visibility_mask(gate, mask_any, rows);
    params.mask = mask.view<bool>();
    params.allow_tf32 = allows_tf32();
    if (!q_any.is_cpu()) refuse_variants(variants);
    if (variants.has_max_logits && rows.keys > std::numeric_limits<int32_t>::max())
      refuse(kOp, "S", "below 2^31 with return_max_logits", std::to_string(rows.keys));
    take_sequences(variants);
    take_window(variants);
    take_transform(variants, q_any.scalar_type());
    take_dropout(variants);
  }

  /// out or its gradient.
  Wanted of_outputs(const char* name, const Tensor& q) const {
    return {name,
            {rows.batch, rows.heads, rows.queries, params.value_dim},
            "[B, H, T, Dv]",
            q.scalar_type(),
            " like q"};
  }

 private:
  /// Those of the CPU alone.
  static void refuse_variants(const Variants& given) {
    const auto refuse_one = [](const char* name, bool is_given) {
      if (is_given)
        refuse(kOp, name, "left out on CUDA, where backend='reference' computes it", "one");
    };
    refuse_one("bias", given.bias.has_value());
    refuse_one("alibi_slopes", given.alibi_slopes.has_value());
  }
  void take_sequences(const Variants& given) {
    if (given.cu_seqlens_q.has_value() != given.cu_seqlens_k.has_value())
      refuse(kOp, "cu_seqlens", "given for queries and keys", "one of both");
    if (!given.cu_seqlens_q) return;
    if (rows.batch != 1) refuse(kOp, "B", "1 with cu_seqlens", std::to_string(rows.batch));
    if (params.mask || given.bias)
      refuse(kOp, params.mask ? "mask" : "bias", "left out with cu_seqlens", "one");
    sequences = {starts("cu_seqlens_q", *given.cu_seqlens_q, rows.queries),
                 starts("cu_seqlens_k", *given.cu_seqlens_k, rows.keys)};
    if (sequences->keys.size() != sequences->queries.size())
      refuse(kOp, "cu_seqlens_k", "as long as cu_seqlens_q",
             std::to_string(sequences->keys.size()));
  }
  std::vector<int64_t> starts(const char* name, const Tensor& tensor, int64_t end) const {
    if (tensor.dim() != 1 || tensor.numel() < 1)
      refuse(kOp, name, "[N + 1]", shape_text(shape_of(tensor)));
    if (!tensor.is_cpu())
      refuse(kOp, name, "on the CPU", "device " + std::to_string(tensor.get_device_index()));
    const Wanted wanted{name, shape_of(tensor),   "[N + 1]", ScalarType::Int,
                        "",   Layout::kContiguous};
    const Operand taken = Gate(kOp, name, tensor, 1, "[N + 1]").take(tensor, wanted);
    const auto* first = static_cast<const int32_t*>(taken.data());
    const std::vector<int64_t> found(first, first + tensor.numel());
    if (found.front() != 0 || found.back() != end || !std::is_sorted(found.begin(), found.end()))
      refuse(kOp, name, "ascending from 0 to " + std::to_string(end),
             std::to_string(found.front()) + " to " + std::to_string(found.back()));
    return found;
  }
  void take_window(const Variants& given) {
    const auto bound = [](const char* name, std::optional<int64_t> size) -> int64_t {
      if (size && *size < 0) refuse(kOp, name, "None or at least 0", std::to_string(*size));
      // More than there may be keys is no bound.
      return size && *size <= kMostPositions ? *size : -1;
    };
    params.window_left = bound("window_left", given.window_left);
    params.window_right = bound("window_right", given.window_right);
  }
  void take_transform(const Variants& given, ScalarType type) {
    if (given.softcap && !(*given.softcap > 0 && std::isfinite(*given.softcap)))
      refuse(kOp, "softcap", "a finite number above 0", std::to_string(*given.softcap));
    params.softcap = given.softcap.value_or(0);
    params.has_fine_bias = given.bias && given.bias->scalar_type() == statistics;
    bias = gate.broadcast(given.bias, {"bias",
                                       {rows.batch, rows.heads, rows.queries, rows.keys},
                                       "[B, H, T, S]",
                                       params.has_fine_bias ? statistics : type,
                                       " like q"});
    params.bias = bias.view();
    alibi_slopes = of_heads("alibi_slopes", given.alibi_slopes);
    params.alibi_slopes = alibi_slopes.view();
    sinks = of_heads("sinks", given.sinks);
    params.sinks = sinks.view();
  }
  void take_dropout(const Variants& given) {
    if (!(given.dropout_p >= 0 && given.dropout_p < 1))
      refuse(kOp, "dropout_p", "at least 0 and below 1", std::to_string(given.dropout_p));
    dropout_seeds = gate.take(given.dropout_seeds,
                              {"dropout_seeds",
                               {sequences ? static_cast<int64_t>(sequences->count()) : rows.batch},
                               "[B], or one of each sequence,",
                               ScalarType::Long,
                               "",
                               Layout::kContiguous});
    params.dropout = {static_cast<const int64_t*>(dropout_seeds.data()), given.dropout_p};
  }
  Operand of_heads(const char* name, const OptionalTensor& tensor) const {
    return gate.broadcast(tensor, {name, {rows.batch, rows.heads}, "[B, H]", statistics, ""});
  }

  static Wanted of_keys(const Tensor& q, const Tensor& k) {
    return {"k",
            {q.size(0), k.size(1), k.size(2), q.size(3)},
            k.size(1) == q.size(1) ? "[B, H, S, D]" : "[B, G, S, D]",
            q.scalar_type(),
            " like q"};
  }
  static Wanted of_values(const Tensor& k, const Tensor& v, const Tensor& q) {
    return {"v",
            {k.size(0), k.size(1), k.size(2), v.size(3)},
            k.size(1) == q.size(1) ? "[B, H, S, Dv]" : "[B, G, S, Dv]",
            q.scalar_type(),
            " like q"};
  }
  /// Checks that the gate does not make.
  static Rows checked_rows(const Tensor& q, const Tensor& k, const Tensor& v,
                           std::optional<double> scale) {
    const auto require_width = [](const char* letter, int64_t width) {
      if (width < 1 || width > kernels::kMaxHeadDim)
        refuse(kOp, letter, "from 1 to " + std::to_string(kernels::kMaxHeadDim),
               std::to_string(width));
    };
    require_width("D", q.size(3));
    if (k.dim() != 4) refuse(kOp, "k", "[B, G, S, D]", shape_text(shape_of(k)));
    if (v.dim() != 4) refuse(kOp, "v", "[B, G, S, Dv]", shape_text(shape_of(v)));
    require_width("Dv", v.size(3));
    if (k.size(1) == 0 ? q.size(1) != 0 : q.size(1) % k.size(1) != 0)
      refuse(kOp, "H", "a multiple of k's heads (" + std::to_string(k.size(1)) + ")",
             std::to_string(q.size(1)));
    require_possible(kOp, "T", q.size(2));
    require_possible(kOp, "S", k.size(2));
    if (scale && !std::isfinite(*scale))
      refuse(kOp, "scale", "a finite number", std::to_string(*scale));
    return {q.size(0), q.size(1), q.size(2), k.size(2)};
  }
};

}  // namespace aero::torch_ops::attention
