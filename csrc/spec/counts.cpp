#include "csrc/spec/counts.h"

#include <array>
#include <limits>
#include <stdexcept>

#include "csrc/spec/label_words.h"
#include "csrc/spec/nearest_word.h"

namespace aero::spec {
namespace {

__extension__ using WideCount = __int128;

std::int64_t narrow(WideCount count, std::string_view what) {
  if (count > std::numeric_limits<std::int64_t>::max())
    throw std::invalid_argument("ArchitectureSpec: the number of " + std::string(what) +
                                " exceeds 2^63 - 1; the sizes are too large");
  return static_cast<std::int64_t>(count);
}

// All that numbered parts add.
AddedWeights added_weights(const ArchitectureSpec& spec) {
  AddedWeights sum;
  for_each_numbered([&](const auto& part) {
    if (!part.is_in(spec)) return;
    const AddedWeights added = word_of(part.words, spec.*part.kind).added(spec.*part.number);
    sum.ffn_matrices += added.ffn_matrices;
    sum.ffn_factors += added.ffn_factors;
    sum.layer_factors += added.layer_factors;
  });
  return sum;
}

// The fields as wide integers under the field's letters, and what is there per layer.
struct Sizes {
  explicit Sizes(const ArchitectureSpec& spec)
      : L(spec.num_layers),
        H(spec.num_heads),
        d(spec.width),
        F(spec.hidden_width),
        T(spec.context_length),
        V(spec.vocab_size),
        inner(H * spec.head_dim),
        ffns(L - spec.num_pruned_ffns),
        fused(spec.ffn == FeedForward::kFused || spec.ffn == FeedForward::kScaledFused),
        added(added_weights(spec)) {}

  WideCount L, H, d, F, T, V;
  WideCount inner;  // H d_k
  WideCount ffns;   // layers that have an FFN
  bool fused;
  AddedWeights added;
};

// A shaped block normalizes once, before both of its branches; others once before each sub-block.
WideCount block_norms(const ArchitectureSpec& spec, const Sizes& sizes) {
  if (spec.norm == Norm::kNone) return 0;
  return spec.shaped_attention ? sizes.L : sizes.L + sizes.ffns;
}

WideCount norm_parameters(Norm norm, WideCount d) {
  switch (norm) {
    case Norm::kNone:
      return 0;
    case Norm::kLayer:
      return 2 * d;
    case Norm::kFoldableChannel:
    case Norm::kFoldableScalar:
      return d;
    case Norm::kDynamicTanh:
      return 2 * d + 1;
    case Norm::kDynamicErf:
      return 2 * d + 2;
  }
  return 0;
}

WideCount final_norm_parameters(const ArchitectureSpec& spec, WideCount d) {
  switch (spec.final_norm) {
    case FinalNorm::kNone:
      return 0;
    case FinalNorm::kLayer:
      return norm_parameters(Norm::kLayer, d);
    case FinalNorm::kFoldable:
      return d;
    case FinalNorm::kDynamicTanh:
      return norm_parameters(Norm::kDynamicTanh, d);
    case FinalNorm::kDynamicErf:
      return norm_parameters(Norm::kDynamicErf, d);
  }
  return 0;
}

WideCount temperatures_per_layer(const ArchitectureSpec& spec, const Sizes& sizes) {
  switch (spec.temperature) {
    case Temperature::kNone:
      return 0;
    case Temperature::kHeadPosition:
      return sizes.H * sizes.T;
    case Temperature::kHead:
      return sizes.H;
    case Temperature::kScalar:
      return 1;
  }
  return 0;
}

// Weight norm gives each normalized linear layer a gain per output channel.
WideCount weight_norm_gains(const ArchitectureSpec& spec, const Sizes& sizes) {
  if (spec.ffn != FeedForward::kWeightNorm) return 0;
  const NormalizedLayers set = spec.normalized_layers;
  const bool ffn = set != NormalizedLayers::kQk;
  const bool query_key = set != NormalizedLayers::kFfn;
  const bool output = set == NormalizedLayers::kQkvoFfn && !spec.shaped_attention;
  const bool value = (output || set == NormalizedLayers::kQkvFfn) && !spec.shaped_attention;
  return sizes.L * ((query_key ? 2 * sizes.inner : 0) + (value ? sizes.inner : 0) +
                    (output ? sizes.d : 0)) +
         (ffn ? sizes.ffns * (sizes.F + sizes.d) : 0);
}

WideCount ffn_parameters(const ArchitectureSpec& spec, const Sizes& sizes) {
  const WideCount d = sizes.d, F = sizes.F;
  WideCount per_layer = sizes.fused ? d * d + d : d * F + F + F * d + d;
  const bool scaled = spec.ffn == FeedForward::kScaled || spec.ffn == FeedForward::kScaledFused;
  if (spec.shaped_attention)
    per_layer += 1;  // g, which takes the place of 1/alpha and beta
  else if (scaled)
    per_layer += 2;  // alpha, beta
  if (spec.ffn == FeedForward::kLeakyReluLayer) per_layer += 1;
  const WideCount global_slope =
      spec.ffn == FeedForward::kLeakyReluGlobal && sizes.ffns > 0 ? 1 : 0;
  return sizes.ffns * per_layer + global_slope;
}

}  // namespace

// Every linear layer but the head has a bias. [..] are shapes; "per FFN" means per layer whose FFN
// is not pruned.
//
//   once       token embedding [V, d]; positions [T, d] unless rotary_fraction > 0; head [V, d]
//              unless tied; final norm
//   per layer  query, key, value: 3 x (d x H d_k, bias [H d_k]); projection H d_k x d, bias [d]
//              norm before attention; temperature [H, T], [H] or [1]
//   per FFN    norm before the FFN; d x F, [F], F x d, [d], or fused: d x d, [d]
//              scaled: alpha [1], beta [1]; leaky: slope [1] (global: one for the whole network)
//   numbered parts  matrices [d, d] and factors [d] as their words say; no biases
//   norms      LayerNorm: weight [d], bias [d]; foldable of either kind: gain [d]; dynamic tanh:
//              alpha [1], weight [d], bias [d]; dynamic erf: shift [1] too
//   weight norm: gain [out, 1] of each normalized linear layer; spectral norm: none (buffers)
//   shaped (SOTA) blocks have query and key only, no projection; alpha, beta, gamma [H] each; one
//              norm for both branches; per FFN g [1] and neither alpha nor beta
//   training   thresholds [L, H] if entropy regularized
std::int64_t parameter_count(const ArchitectureSpec& spec, bool training) {
  const Sizes sizes(spec);
  const auto& [L, H, d, F, T, V, inner, ffns, fused, added] = sizes;
  WideCount count = V * d + final_norm_parameters(spec, d);
  if (spec.rotary_fraction == 0.0) count += T * d;
  if (!spec.tied_embeddings) count += V * d;
  const WideCount attention = spec.shaped_attention ? 2 * (d * inner + inner) + 3 * H
                                                    : 3 * (d * inner + inner) + inner * d + d;
  count += L * (attention + temperatures_per_layer(spec, sizes));
  count += block_norms(spec, sizes) * norm_parameters(spec.norm, d);
  count +=
      ffns * (added.ffn_matrices * d * d + added.ffn_factors * d) + L * added.layer_factors * d;
  count += ffn_parameters(spec, sizes) + weight_norm_gains(spec, sizes);
  if (training && spec.entropy_regularized) count += L * H;
  return narrow(count, "parameters");
}

// The paper's count per layer (with F = 4d and H d_k = d): FFN 16 T d^2, fused 2 T d^2, pruned 0;
// attention 8 T d^2 + 3 T^2 d, SOTA 4 T d^2 + 2 T^2 d. Appendix E has one term more, T d, which is
// left out here: it is below 0.01 % of GPT-2's, and no printed digit shows it.
Flops flops(const ArchitectureSpec& spec, FlopsConvention convention) {
  const Sizes sizes(spec);
  const auto& [L, H, d, F, T, V, inner, ffns, fused, added] = sizes;
  const bool paper = convention == FlopsConvention::kPaper;
  const WideCount ffn =
      ffns * ((fused ? 2 * T * d * d : 4 * T * d * F) + added.ffn_matrices * 2 * T * d * d);
  // Shaped attention has query and key products only, and its values are the d-wide stream itself.
  const WideCount projections = (spec.shaped_attention ? 4 : 8) * T * d * inner;
  const WideCount values = spec.shaped_attention ? d : inner;
  const WideCount scores = !paper                  ? 2 * T * T * (inner + values)
                           : spec.shaped_attention ? T * T * (inner + values)
                                                   : 3 * T * T * inner;
  const WideCount attention = L * (projections + scores);
  const WideCount lm_head = paper ? 0 : 2 * T * d * V;
  return {.ffn = narrow(ffn, "FLOPs"),
          .attention = narrow(attention, "FLOPs"),
          .lm_head = narrow(lm_head, "FLOPs"),
          .total = narrow(ffn + attention + lm_head, "FLOPs")};
}

FlopsConvention flops_convention(std::string_view name) {
  constexpr std::array<std::string_view, 2> kNames{"paper", "executed"};
  if (name == kNames[0]) return FlopsConvention::kPaper;
  if (name == kNames[1]) return FlopsConvention::kExecuted;
  throw std::invalid_argument("ArchitectureSpec.flops: convention must be " + quoted_list(kNames) +
                              ", got " + quoted(name));
}

NonlinearOperations nonlinear_operations(const ArchitectureSpec& spec) {
  const Sizes sizes(spec);
  const std::int64_t T = spec.context_length;
  NonlinearOperations operations{.softmax = {spec.num_layers * spec.num_heads, T, T},
                                 .layernorm = {0, T, spec.width},
                                 .dynamic_tanh = {0, T, spec.width},
                                 .dynamic_erf = {0, T, spec.width},
                                 .activation = {0, T, spec.hidden_width},
                                 .activation_symbol = ""};
  const auto of_norms = [&](Norm norm, FinalNorm final_norm) {
    return (spec.norm == norm ? static_cast<std::int64_t>(block_norms(spec, sizes)) : 0) +
           (spec.final_norm == final_norm ? 1 : 0);
  };
  operations.layernorm.count = of_norms(Norm::kLayer, FinalNorm::kLayer);
  operations.dynamic_tanh.count = of_norms(Norm::kDynamicTanh, FinalNorm::kDynamicTanh);
  operations.dynamic_erf.count = of_norms(Norm::kDynamicErf, FinalNorm::kDynamicErf);
  switch (spec.ffn) {
    case FeedForward::kGelu:
      operations.activation_symbol = "G";
      break;
    case FeedForward::kRelu:
      operations.activation_symbol = "R";
      break;
    case FeedForward::kLeakyReluLayer:
    case FeedForward::kLeakyReluGlobal:
      operations.activation_symbol = "LR";
      break;
    default:
      return operations;
  }
  operations.activation.count = spec.num_layers - spec.num_pruned_ffns;
  return operations;
}

std::string to_string(const NonlinearOperations& operations) {
  std::string text;
  const auto append = [&](std::string_view symbol, const OperationCount& operation) {
    if (operation.count == 0) return;
    if (!text.empty()) text += ' ';
    text += std::string(symbol) + ":" + std::to_string(operation.count) + "xR^{" +
            std::to_string(operation.rows) + "x" + std::to_string(operation.columns) + "}";
  };
  append("SM", operations.softmax);
  append("LN", operations.layernorm);
  append("DyT", operations.dynamic_tanh);
  append("Derf", operations.dynamic_erf);
  append(operations.activation_symbol, operations.activation);
  return text;
}

}  // namespace aero::spec
