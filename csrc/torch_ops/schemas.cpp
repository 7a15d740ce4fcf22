// Table of contents of the operator library: every schema, and the kernel behind it.
//
// Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width,
// N rows, V classes.
// Fake kernels, autograd and batching rules: python/aero/ops.
#include <torch/csrc/stable/library.h>

#include "csrc/torch_ops/operators.h"

#if !defined(AERO_OPS_NAMESPACE)
#define AERO_OPS_NAMESPACE aero
#endif
// torch's macros paste the name that they get, so it is expanded before.
#define AERO_LIBRARY(name, library) STABLE_TORCH_LIBRARY(name, library)
#define AERO_LIBRARY_IMPL(name, device, library) STABLE_TORCH_LIBRARY_IMPL(name, device, library)

AERO_LIBRARY(AERO_OPS_NAMESPACE, library) {
  library.def(
      "temperature_softmax(Tensor scores, Tensor? temperature, Tensor? mask, bool is_causal)"
      " -> (Tensor probabilities, Tensor entropy, Tensor logsumexp, Tensor statistics)");
  library.def(
      "temperature_softmax_backward(Tensor? dprobabilities, Tensor? dentropy, Tensor? dlogsumexp,"
      " Tensor scores, Tensor? temperature, Tensor? mask, Tensor statistics, bool is_causal,"
      " bool needs_scores, bool needs_temperature) -> (Tensor dscores, Tensor dtemperature)");

  library.def(
      "attention_entropy(Tensor q, Tensor k, Tensor v, Tensor? temperature, Tensor? mask,"
      " bool is_causal, float? scale, int? window_left, int? window_right, float? softcap,"
      " Tensor? bias, Tensor? alibi_slopes, Tensor? sinks, Tensor? dropout_seeds, float dropout_p,"
      " Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, bool return_max_logits)"
      " -> (Tensor out, Tensor entropy, Tensor logsumexp, Tensor statistics, Tensor max_logits,"
      " Tensor largest_key)");
  library.def(
      "attention_entropy_backward(Tensor? dout, Tensor? dentropy, Tensor? dlogsumexp,"
      " Tensor? dmax_logits, Tensor q, Tensor k, Tensor v, Tensor? temperature, Tensor? mask,"
      " Tensor out, Tensor statistics, Tensor? largest_key, bool is_causal, float? scale,"
      " int? window_left, int? window_right, float? softcap, Tensor? bias, Tensor? alibi_slopes,"
      " Tensor? sinks, Tensor? dropout_seeds, float dropout_p, Tensor? cu_seqlens_q,"
      " Tensor? cu_seqlens_k, bool needs_q, bool needs_k, bool needs_v, bool needs_temperature,"
      " bool needs_bias, bool needs_alibi_slopes, bool needs_sinks)"
      " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dtemperature, Tensor dbias,"
      " Tensor dalibi_slopes, Tensor dsinks)");

  library.def(
      "entropy_regularization(Tensor entropies, Tensor thresholds, Tensor max_entropy,"
      " Tensor? row_mask, float margin, bool query_mean) -> Tensor");
  library.def(
      "entropy_regularization_backward(Tensor dloss, Tensor entropies, Tensor thresholds,"
      " Tensor max_entropy, Tensor? row_mask, float margin, bool query_mean)"
      " -> (Tensor dentropies, Tensor dthresholds)");

  library.def(
      "scaled_ffn(Tensor x, Tensor weight, Tensor bias, Tensor alpha, Tensor beta) -> Tensor");
  library.def(
      "scaled_ffn_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor alpha,"
      " Tensor beta, bool needs_x, bool needs_parameters)"
      " -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dalpha, Tensor dbeta)");

  // Of models' losses, on the CPU alone, without derivatives and batching rules.
  library.def("cross_entropy(Tensor logits, Tensor targets) -> Tensor total");
  library.def(
      "cross_entropy_gradient_(Tensor(a!) logits, Tensor targets, Tensor factors)"
      " -> Tensor total");
}

namespace {

/// One function per operator: it sees by its tensors where to compute.
template <class Library>
void implement_all(Library& library) {
  using namespace aero::torch_ops;
  library.impl("temperature_softmax", TORCH_BOX(&temperature_softmax));
  library.impl("temperature_softmax_backward", TORCH_BOX(&temperature_softmax_backward));
  library.impl("attention_entropy", TORCH_BOX(&attention_entropy));
  library.impl("attention_entropy_backward", TORCH_BOX(&attention_entropy_backward));
  library.impl("entropy_regularization", TORCH_BOX(&entropy_regularization));
  library.impl("entropy_regularization_backward", TORCH_BOX(&entropy_regularization_backward));
  library.impl("scaled_ffn", TORCH_BOX(&scaled_ffn));
  library.impl("scaled_ffn_backward", TORCH_BOX(&scaled_ffn_backward));
}

}  // namespace

AERO_LIBRARY_IMPL(AERO_OPS_NAMESPACE, CPU, library) {
  using namespace aero::torch_ops;
  implement_all(library);
  library.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  library.impl("cross_entropy_gradient_", TORCH_BOX(&cross_entropy_gradient_));
}

#if defined(AERO_CUDA)
AERO_LIBRARY_IMPL(AERO_OPS_NAMESPACE, CUDA, library) { implement_all(library); }
#endif
