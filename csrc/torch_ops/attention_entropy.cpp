#include "kernels/attention_entropy.h"

#include <cmath>

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/float32_precision.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/row_values.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "attention_entropy";

/// Checked inputs; the operands keep the memory of the params alive.
struct Inputs {
  Gate gate;
  Rows rows;
  ScalarType statistics;
  Operand q, k, v, temperature, mask;
  kernels::AttentionEntropyParams params;

  Inputs(const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
         const OptionalTensor& temperature_any, const OptionalTensor& mask_any, bool is_causal,
         std::optional<double> scale)
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
  }

  /// A tensor of the shape of q.
  static Wanted of_queries(const char* name, const Tensor& q) {
    return {name, shape_of(q), "[B, H, T, D]", q.scalar_type(), " like q"};
  }

 private:
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

/// Laid out as a contiguous input is, which autograd then keeps as the gradient without a copy.
Result gradient_of(const Tensor& input, bool wanted) {
  return wanted && !input.is_contiguous()
             ? empty_heads(input)
             : Result(input, shape_of(input), input.scalar_type(), wanted);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_entropy(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, bool is_causal, std::optional<double> scale) {
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale);
  const Result out = empty_heads(q);
  const RowResults results(q, inputs.rows, inputs.statistics);

  kernels::AttentionEntropyForwardParams params;
  static_cast<kernels::AttentionEntropyParams&>(params) = inputs.params;
  params.out = out.view();
  results.pass_to(params);
  run_where_it_is(params, q);
  return {out.tensor(), results.entropy.tensor(), results.logsumexp.tensor(),
          results.statistics.tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_entropy_backward(
    const OptionalTensor& dout, const OptionalTensor& dentropy, const OptionalTensor& dlogsumexp,
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, const Tensor& out, const Tensor& statistics, bool is_causal,
    std::optional<double> scale, bool needs_q, bool needs_k, bool needs_v, bool needs_temperature) {
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale);
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
  params.threads = thread_count();
  if (inputs.rows.heads > 0) {
    run_where_it_is(params, q);
  } else {  // key heads that no head reads
    for (Tensor unread : {dk.tensor(), dv.tensor()}) torch::stable::zero_(unread);
  }
  return {dq.tensor(), dk.tensor(), dv.tensor(),
          row_gradients.dtemperature(temperature, needs_temperature)};
}

}  // namespace aero::torch_ops
