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

/// Checked inputs; the tensors keep alive what the params point to.
struct Inputs {
  Tensor q, k, v;
  kernels::AttentionEntropyParams params;
  Rows rows;
  ScalarType statistics;

  Inputs(const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
         const OptionalTensor& temperature, const OptionalTensor& mask, bool is_causal,
         std::optional<double> scale)
      : q(with_contiguous_rows(checked_q(q_any))),
        k(with_contiguous_rows(checked_key(q_any, "k", k_any, k_any))),
        v(with_contiguous_rows(checked_key(q_any, "v", v_any, k_any))),
        rows{q.size(0), q.size(1), q.size(2), k.size(2)},
        statistics(statistics_type(data_type_of(kOp, "q", q))) {
    params.data_type = data_type_of(kOp, "q", q);
    params.batch = rows.batch;
    params.heads = rows.heads;
    params.key_heads = k.size(1);
    params.queries = rows.queries;
    params.keys = rows.keys;
    params.head_dim = q.size(3);
    params.q = q.const_data_ptr();
    params.k = k.const_data_ptr();
    params.v = v.const_data_ptr();
    params.q_strides = strides_of(q);
    params.k_strides = strides_of(k);
    params.v_strides = strides_of(v);
    params.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(params.head_dim));
    if (temperature) {
      require_device(kOp, "temperature", *temperature, q, "q");
      params.temperature_strides = temperature_strides(kOp, *temperature, statistics, rows);
      params.temperature = temperature->const_data_ptr();
    }
    params.is_causal = is_causal;
    if (mask) {
      require_device(kOp, "mask", *mask, q, "q");
      params.mask_strides = mask_strides(kOp, *mask, rows);
      params.mask = mask->const_data_ptr<bool>();
    }
    params.allow_tf32 = allows_tf32();
  }

 private:
  static Tensor checked_q(const Tensor& q) {
    require_dim(kOp, "q", q, 4, "[B, H, T, D]");
    if (q.size(3) < 1 || q.size(3) > kernels::kMaxHeadDim)
      refuse(kOp, "D", "from 1 to " + std::to_string(kernels::kMaxHeadDim),
             std::to_string(q.size(3)));
    require_possible(kOp, "T", q.size(2));
    return q;
  }

  /// k against q, and v against q and k.
  static Tensor checked_key(const Tensor& q, const char* argument, const Tensor& tensor,
                            const Tensor& k) {
    require_dim(kOp, "k", k, 4, "[B, G, S, D]");
    require_shape(kOp, argument, tensor, {q.size(0), k.size(1), k.size(2), q.size(3)},
                  k.size(1) == q.size(1) ? "[B, H, S, D]" : "[B, G, S, D]");
    if (k.size(1) == 0 ? q.size(1) != 0 : q.size(1) % k.size(1) != 0)
      refuse(kOp, "H", "a multiple of k's heads (" + std::to_string(k.size(1)) + ")",
             std::to_string(q.size(1)));
    require_device(kOp, argument, tensor, q, "q");
    require_possible(kOp, "S", k.size(2));
    data_type_of(kOp, "q", q);
    require_dtype(kOp, argument, tensor, q.scalar_type(), " like q");
    return tensor;
  }
};

/// [B, heads, rows, D] in memory laid out as [B, rows, heads, D]: what models transpose back to.
Tensor empty_heads(const Tensor& like) {
  return torch::stable::transpose(
      empty(like, {like.size(0), like.size(2), like.size(1), like.size(3)}, like.scalar_type()), 1,
      2);
}

/// Does a call where its tensors are: on torch's threads, or in torch's stream.
void run_where_it_is(kernels::AttentionEntropyForwardParams& params, const Tensor& q) {
#if defined(AERO_CUDA)
  if (q.is_cuda()) return kernels::cuda::launch(params, CudaQueue(kOp, q).get());
#endif
  params.key_parts = kernels::cpu::key_parts(params, thread_count());
  const auto partial_bytes = static_cast<int64_t>(kernels::cpu::partial_bytes(params));
  const Tensor partials = empty(q, {partial_bytes}, ScalarType::Byte);
  params.partials = partials.mutable_data_ptr();
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
    const Tensor workspace =
        empty(q, {static_cast<int64_t>(kernels::cuda::workspace_bytes(params))}, ScalarType::Byte);
    return kernels::cuda::launch(params, workspace.mutable_data_ptr(), queue.get());
  }
#endif
  run_parallel(params);
}

/// Laid out as a contiguous input is, which autograd then keeps as the gradient without a copy.
Tensor empty_gradient(const Tensor& input) {
  return input.is_contiguous() ? empty(input, shape_of(input), input.scalar_type())
                               : empty_heads(input);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_entropy(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, bool is_causal, std::optional<double> scale) {
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale);
  const Tensor out = empty_heads(q);
  const RowResults results(q, inputs.rows, inputs.statistics);

  kernels::AttentionEntropyForwardParams params;
  static_cast<kernels::AttentionEntropyParams&>(params) = inputs.params;
  params.out = out.mutable_data_ptr();
  params.out_strides = strides_of(out);
  results.pass_to(params);
  run_where_it_is(params, q);
  return {out, results.entropy, results.logsumexp, results.statistics};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_entropy_backward(
    const OptionalTensor& dout, const OptionalTensor& dentropy, const OptionalTensor& dlogsumexp,
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, const Tensor& out, const Tensor& statistics, bool is_causal,
    std::optional<double> scale, bool needs_q, bool needs_k, bool needs_v, bool needs_temperature) {
  const Inputs inputs(q, k, v, temperature, mask, is_causal, scale);
  require_shape(kOp, "out", out, shape_of(q), "[B, H, T, D]");
  require_dtype(kOp, "out", out, q.scalar_type(), " like q");
  for (const Tensor* tensor : {&out, &statistics})
    require_device(kOp, "out and statistics", *tensor, q, "q");
  for (const OptionalTensor* gradient : {&dout, &dentropy, &dlogsumexp})
    if (*gradient) require_device(kOp, "every gradient", **gradient, q, "q");
  if (dout) {
    require_shape(kOp, "dout", *dout, shape_of(q), "[B, H, T, D]");
    require_dtype(kOp, "dout", *dout, q.scalar_type(), " like q");
  }

  const Tensor out_rows = with_contiguous_rows(out);
  const OptionalTensor dout_rows = dout ? OptionalTensor(with_contiguous_rows(*dout)) : dout;
  const RowGradients row_gradients(kOp, q, inputs.rows, inputs.statistics,
                                   {statistics, dentropy, dlogsumexp},
                                   needs_temperature && temperature);
  const Tensor dq = needs_q ? empty_gradient(q) : empty(q, {0}, q.scalar_type());
  const Tensor dk = needs_k ? empty_gradient(k) : empty(q, {0}, q.scalar_type());
  const Tensor dv = needs_v ? empty_gradient(v) : empty(q, {0}, q.scalar_type());

  kernels::AttentionEntropyBackwardParams params;
  static_cast<kernels::AttentionEntropyParams&>(params) = inputs.params;
  params.out = out_rows.const_data_ptr();
  params.out_strides = strides_of(out_rows);
  params.dout = data_or_null(dout_rows);
  if (dout_rows) params.dout_strides = strides_of(*dout_rows);
  row_gradients.pass_to(params);
  if (needs_q) {
    params.dq = dq.mutable_data_ptr();
    params.dq_strides = strides_of(dq);
  }
  if (needs_k) {
    params.dk = dk.mutable_data_ptr();
    params.dk_strides = strides_of(dk);
  }
  if (needs_v) {
    params.dv = dv.mutable_data_ptr();
    params.dv_strides = strides_of(dv);
  }
  params.threads = thread_count();
  run_where_it_is(params, q);
  return {dq, dk, dv, row_gradients.dtemperature(temperature)};
}

}  // namespace aero::torch_ops
