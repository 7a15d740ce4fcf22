#include "kernels/attention_entropy.h"

#include <algorithm>
#include <cmath>

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/float32_precision.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/packed_sequences.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/row_values.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "attention_entropy";

/// What a call may do beside the plain attention.
struct Variants {
  std::optional<int64_t> window_left, window_right;
  std::optional<double> softcap;
  const OptionalTensor &bias, &alibi_slopes, &sinks, &dropout_seeds;
  double dropout_p;
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
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
        rows(checked_rows(q_any, k_any, scale)),
        statistics(statistics_type(gate.data_type())),
        q(gate.take(q_any, of_queries("q", q_any))),
        k(gate.take(k_any, of_keys("k", q_any, k_any))),
        v(gate.take(v_any, of_keys("v", q_any, k_any))) {
    params.data_type = gate.data_type();
    params.batch = rows.batch;
    params.heads = rows.heads;
    params.key_heads = k_any.size(1);
    params.queries = rows.queries;
    params.keys = rows.keys;
    params.head_dim = q_any.size(3);
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
    take_sequences(variants);
    take_window(variants);
    take_transform(variants, q_any.scalar_type());
    take_dropout(variants);
  }

  /// A tensor of the shape of q.
  static Wanted of_queries(const char* name, const Tensor& q) {
    return {name, shape_of(q), "[B, H, T, D]", q.scalar_type(), " like q"};
  }

 private:
  /// Those of the CPU alone.
  static void refuse_variants(const Variants& given) {
    const auto refuse_one = [](const char* name, bool is_given) {
      if (is_given)
        refuse(kOp, name, "left out on CUDA, where backend='reference' computes it", "one");
    };
    refuse_one("window", given.window_left || given.window_right);
    refuse_one("softcap", given.softcap.has_value());
    refuse_one("bias", given.bias.has_value());
    refuse_one("alibi_slopes", given.alibi_slopes.has_value());
    refuse_one("sinks", given.sinks.has_value());
    refuse_one("dropout_p", given.dropout_seeds.has_value());
    refuse_one("cu_seqlens", given.cu_seqlens_q.has_value());
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
    const Wanted wanted{name, shape_of(tensor),   "[N + 1]", ScalarType::Int,
                        "",   Layout::kContiguous};
    const Operand taken = gate.take(tensor, wanted);
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

  static Wanted of_keys(const char* name, const Tensor& q, const Tensor& k) {
    return {name,
            {q.size(0), k.size(1), k.size(2), q.size(3)},
            k.size(1) == q.size(1) ? "[B, H, S, D]" : "[B, G, S, D]",
            q.scalar_type(),
            " like q"};
  }
  /// Checks that the gate does not make.
  static Rows checked_rows(const Tensor& q, const Tensor& k, std::optional<double> scale) {
    if (q.size(3) < 1 || q.size(3) > kernels::kMaxHeadDim)
      refuse(kOp, "D", "from 1 to " + std::to_string(kernels::kMaxHeadDim),
             std::to_string(q.size(3)));
    if (k.dim() != 4) refuse(kOp, "k", "[B, G, S, D]", shape_text(shape_of(k)));
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

/// [B, heads, rows, D] in memory laid out as [B, rows, heads, D], to which models transpose back.
Result empty_heads(const Tensor& like) {
  const Result memory(like, {like.size(0), like.size(2), like.size(1), like.size(3)},
                      like.scalar_type());
  return Result(torch::stable::transpose(memory.tensor(), 1, 2));
}

/// Does a call where its tensors are: on torch's threads, or in torch's stream.
void run_where_it_is(kernels::AttentionEntropyForwardParams& params, const Tensor& q) {
#if defined(AERO_CUDA)
  if (q.is_cuda()) return kernels::cuda::launch(params, CudaQueue(kOp, q).get());
#endif
  params.key_parts = kernels::cpu::key_parts(params, thread_count());
  const auto partial_bytes = static_cast<int64_t>(kernels::cpu::partial_bytes(params));
  const Result partials(q, {partial_bytes}, ScalarType::Byte);
  params.partials = partials.data();
  run_parallel(params);
  kernels::cpu::finish(params);
}
void run_where_it_is(kernels::AttentionEntropyBackwardParams& params,
                     [[maybe_unused]] const Tensor& q) {
#if defined(AERO_CUDA)
  if (q.is_cuda()) {
    const CudaQueue queue(kOp, q);
    params.head_blocks = kernels::cuda::head_blocks(params, queue.get());
    // torch gives the memory to others only after what is in the stream now.
    const Result workspace(q, {static_cast<int64_t>(kernels::cuda::workspace_bytes(params))},
                           ScalarType::Byte);
    return kernels::cuda::launch(params, workspace.data(), queue.get());
  }
#endif
  run_parallel(params);
}

/// Zeros for a kernel to write among, where they are wanted.
Result zeros_where(bool wanted, const Tensor& like, const Shape& shape, ScalarType type) {
  Result result(like, shape, type, wanted);
  Tensor memory = result.tensor();
  torch::stable::zero_(memory);
  return result;
}

/// Sums a gradient [B, H, ...] to the shape of a tensor that broadcasts to it; empty where the
/// gradient is not there.
Tensor sum_to_shape_of(const OptionalTensor& like, const Tensor& gradient) {
  if (!like || gradient.dim() < 2) return gradient;
  const int64_t missing = gradient.dim() - like->dim();
  Shape summed;
  for (int64_t d = 0; d < gradient.dim(); ++d)
    if (d < missing || (like->size(d - missing) == 1 && gradient.size(d) != 1)) summed.push_back(d);
  const Tensor sum = summed.empty() ? gradient : torch::stable::sum(gradient, summed);
  return torch::stable::reshape(sum, shape_of(*like));
}

/// The same for a gradient of rows, [B, H, T], and a tensor of heads.
Tensor sum_rows_to_shape_of(const OptionalTensor& like, const Tensor& rows) {
  return like && rows.dim() == 3 ? sum_to_shape_of(like, torch::stable::sum(rows, Shape{2})) : rows;
}

/// Laid out as a contiguous input is, which autograd then keeps as the gradient without a copy.
Result gradient_of(const Tensor& input, bool wanted) {
  return wanted && !input.is_contiguous()
             ? empty_heads(input)
             : Result(input, shape_of(input), input.scalar_type(), wanted);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_entropy(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, bool is_causal, std::optional<double> scale,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right,
    std::optional<double> softcap, const OptionalTensor& bias, const OptionalTensor& alibi_slopes,
    const OptionalTensor& sinks, const OptionalTensor& dropout_seeds, double dropout_p,
    const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k) {
  const Variants variants{window_left, window_right,  softcap,   bias,         alibi_slopes,
                          sinks,       dropout_seeds, dropout_p, cu_seqlens_q, cu_seqlens_k};
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale, variants);
  const Result out = empty_heads(q);
  const RowResults results(q, inputs.rows, inputs.statistics);

  kernels::AttentionEntropyForwardParams params;
  static_cast<kernels::AttentionEntropyParams&>(params) = inputs.params;
  params.out = out.view();
  results.pass_to(params);
  if (inputs.sequences)
    run_packed(params, *inputs.sequences, q, inputs.statistics);
  else
    run_where_it_is(params, q);
  return {out.tensor(), results.entropy.tensor(), results.logsumexp.tensor(),
          results.statistics.tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_entropy_backward(
    const OptionalTensor& dout, const OptionalTensor& dentropy, const OptionalTensor& dlogsumexp,
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, const Tensor& out, const Tensor& statistics, bool is_causal,
    std::optional<double> scale, std::optional<int64_t> window_left,
    std::optional<int64_t> window_right, std::optional<double> softcap, const OptionalTensor& bias,
    const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
    const OptionalTensor& dropout_seeds, double dropout_p, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool needs_q, bool needs_k, bool needs_v,
    bool needs_temperature, bool needs_bias, bool needs_alibi_slopes, bool needs_sinks) {
  const Variants variants{window_left, window_right,  softcap,   bias,         alibi_slopes,
                          sinks,       dropout_seeds, dropout_p, cu_seqlens_q, cu_seqlens_k};
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale, variants);
  const Operand out_rows = inputs.gate.take(out, Inputs::of_queries("out", q));
  const Operand dout_rows = inputs.gate.take(dout, Inputs::of_queries("dout", q));
  const RowGradients row_gradients(inputs.gate, q, inputs.rows, inputs.statistics,
                                   {statistics, dentropy, dlogsumexp},
                                   needs_temperature && temperature);
  const Result dq = gradient_of(q, needs_q), dk = gradient_of(k, needs_k),
               dv = gradient_of(v, needs_v);

  kernels::AttentionEntropyBackwardParams params;
  static_cast<kernels::AttentionEntropyParams&>(params) = inputs.params;
  params.out = out_rows.view();
  params.dout = dout_rows.view();
  row_gradients.pass_to(params);
  params.dq = dq.view();
  params.dk = dk.view();
  params.dv = dv.view();
  const Rows& rows = inputs.rows;
  const Result dsinks(q, rows.shape(), inputs.statistics, needs_sinks && sinks);
  const Result dslopes(q, rows.shape(), inputs.statistics, needs_alibi_slopes && alibi_slopes);
  const Result dbias = zeros_where(
      needs_bias && bias, q, {rows.batch, rows.heads, rows.queries, rows.keys}, inputs.statistics);
  params.dsinks = dsinks.data();
  params.dslopes = dslopes.data();
  params.dbias = dbias.data();
  params.threads = thread_count();
  if (inputs.rows.heads > 0 && inputs.sequences) {
    run_packed(params, *inputs.sequences, q, inputs.statistics);
  } else if (inputs.rows.heads > 0) {
    run_where_it_is(params, q);
  } else {  // key heads that no head reads
    for (Tensor unread : {dk.tensor(), dv.tensor()}) torch::stable::zero_(unread);
  }
  return {dq.tensor(),
          dk.tensor(),
          dv.tensor(),
          row_gradients.dtemperature(temperature, needs_temperature),
          sum_to_shape_of(bias, dbias.tensor()),
          sum_rows_to_shape_of(alibi_slopes, dslopes.tensor()),
          sum_rows_to_shape_of(sinks, dsinks.tensor())};
}

}  // namespace aero::torch_ops
