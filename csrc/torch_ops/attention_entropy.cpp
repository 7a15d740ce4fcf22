#include "kernels/attention_entropy.h"

#include "csrc/torch_ops/attention_inputs.h"
#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/packed_sequences.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/row_values.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

using namespace attention;

/// [B, heads, rows, width] in memory laid out as [B, rows, heads, width], to which models transpose
/// back.
Result empty_heads(const Tensor& like, int64_t width) {
  const Result memory(like, {like.size(0), like.size(2), like.size(1), width}, like.scalar_type());
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

/// Sums a gradient [B, H, ...] to the shape of a tensor that broadcasts to it; empty where the
/// gradient is not there.
Tensor sum_to_shape_of(const OptionalTensor& like, const Tensor& gradient) {
  if (!like || gradient.dim() < 2) return gradient;
  const int64_t missing = gradient.dim() - like->dim();
  Shape summed;
  for (int64_t d = 0; d < gradient.dim(); ++d)
    if (gradient.size(d) != 1 && (d < missing || like->size(d - missing) == 1)) summed.push_back(d);
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
             ? empty_heads(input, input.size(3))
             : Result(input, shape_of(input), input.scalar_type(), wanted);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_entropy(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, bool is_causal, std::optional<double> scale,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right,
    std::optional<double> softcap, const OptionalTensor& bias, const OptionalTensor& alibi_slopes,
    const OptionalTensor& sinks, const OptionalTensor& dropout_seeds, double dropout_p,
    const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k,
    bool return_max_logits) {
  const Variants variants{window_left,  window_right, softcap,          bias,
                          alibi_slopes, sinks,        dropout_seeds,    dropout_p,
                          cu_seqlens_q, cu_seqlens_k, return_max_logits};
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale, variants);
  const Result out = empty_heads(q, v.size(3));
  const RowResults results(q, inputs.rows, inputs.statistics);
  const Shape rows = inputs.rows.shape();
  const Result max_logits(q, rows, inputs.statistics, return_max_logits);
  const Result largest_key(q, rows, ScalarType::Long, return_max_logits);

  kernels::AttentionEntropyForwardParams params;
  static_cast<kernels::AttentionEntropyParams&>(params) = inputs.params;
  params.out = out.view();
  results.pass_to(params);
  params.max_logits = max_logits.data();
  params.largest_key = static_cast<int64_t*>(largest_key.data());
  if (inputs.sequences)
    run_packed(params, *inputs.sequences, q, inputs.statistics,
               [&](auto& one) { run_where_it_is(one, q); });
  else
    run_where_it_is(params, q);
  return {out.tensor(),
          results.entropy.tensor(),
          results.logsumexp.tensor(),
          results.statistics.tensor(),
          max_logits.tensor(),
          largest_key.tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_entropy_backward(
    const OptionalTensor& dout, const OptionalTensor& dentropy, const OptionalTensor& dlogsumexp,
    const OptionalTensor& dmax_logits, const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& temperature, const OptionalTensor& mask, const Tensor& out,
    const Tensor& statistics, const OptionalTensor& largest_key, bool is_causal,
    std::optional<double> scale, std::optional<int64_t> window_left,
    std::optional<int64_t> window_right, std::optional<double> softcap, const OptionalTensor& bias,
    const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
    const OptionalTensor& dropout_seeds, double dropout_p, const OptionalTensor& cu_seqlens_q,
    const OptionalTensor& cu_seqlens_k, bool needs_q, bool needs_k, bool needs_v,
    bool needs_temperature, bool needs_bias, bool needs_alibi_slopes, bool needs_sinks) {
  const Variants variants{
      window_left,   window_right, softcap,      bias,         alibi_slopes,           sinks,
      dropout_seeds, dropout_p,    cu_seqlens_q, cu_seqlens_k, dmax_logits.has_value()};
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale, variants);
  const Operand out_rows = inputs.gate.take(out, inputs.of_outputs("out", q));
  const Operand dout_rows = inputs.gate.take(dout, inputs.of_outputs("dout", q));
  const LargestRows largest(inputs.gate, inputs.rows, inputs.statistics, dmax_logits, largest_key);
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
  largest.pass_to(params);
  params.dq = dq.view();
  params.dk = dk.view();
  params.dv = dv.view();
  const Rows& rows = inputs.rows;
  const Result dsinks(q, rows.shape(), inputs.statistics, needs_sinks && sinks);
  const Result dslopes(q, rows.shape(), inputs.statistics, needs_alibi_slopes && alibi_slopes);
  if (needs_bias && bias && (bias->dim() < 4 || bias->size(0) == 1))
    params.bias_entries = bias_entries(rows.batch, params.key_heads, thread_count());
  const int64_t sums = (rows.batch + params.bias_entries - 1) / params.bias_entries;
  const Result dbias(q, {sums, rows.heads, rows.queries, rows.keys}, inputs.statistics,
                     needs_bias && bias);
  params.dsinks = dsinks.data();
  params.dslopes = dslopes.data();
  params.dbias = dbias.view();
  params.threads = thread_count();
  if (inputs.rows.heads > 0 && inputs.sequences) {
    run_packed(params, *inputs.sequences, q, inputs.statistics,
               [&](auto& one) { run_where_it_is(one, q); });
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
