// The operators as torch sees them; shapes and meaning: schemas.cpp and python/aero/ops.
#pragma once

#include <tuple>

#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {

std::tuple<Tensor, Tensor, Tensor, Tensor> temperature_softmax(const Tensor& scores,
                                                               const OptionalTensor& temperature,
                                                               const OptionalTensor& mask,
                                                               bool is_causal);
std::tuple<Tensor, Tensor> temperature_softmax_backward(
    const OptionalTensor& dprobabilities, const OptionalTensor& dentropy,
    const OptionalTensor& dlogsumexp, const Tensor& scores, const OptionalTensor& temperature,
    const OptionalTensor& mask, const Tensor& statistics, bool is_causal, bool needs_scores,
    bool needs_temperature);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_entropy(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& temperature,
    const OptionalTensor& mask, bool is_causal, std::optional<double> scale,
    std::optional<int64_t> window_left, std::optional<int64_t> window_right,
    std::optional<double> softcap, const OptionalTensor& bias, const OptionalTensor& alibi_slopes,
    const OptionalTensor& sinks, const OptionalTensor& dropout_seeds, double dropout_p,
    const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k, bool return_max_logits);
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
    bool needs_temperature, bool needs_bias, bool needs_alibi_slopes, bool needs_sinks);

Tensor entropy_regularization(const Tensor& entropies, const Tensor& thresholds,
                              const Tensor& max_entropy, const OptionalTensor& row_mask,
                              double margin, bool query_mean);
std::tuple<Tensor, Tensor> entropy_regularization_backward(
    const Tensor& dloss, const Tensor& entropies, const Tensor& thresholds,
    const Tensor& max_entropy, const OptionalTensor& row_mask, double margin, bool query_mean);

Tensor cross_entropy(const Tensor& logits, const Tensor& targets);
Tensor cross_entropy_gradient_(const Tensor& logits, const Tensor& targets, const Tensor& factors);

Tensor scaled_ffn(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& alpha,
                  const Tensor& beta);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> scaled_ffn_backward(
    const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& bias,
    const Tensor& alpha, const Tensor& beta, bool needs_x, bool needs_parameters);

}  // namespace aero::torch_ops
