#include "csrc/mpc/op_graph.h"

#include <array>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "csrc/spec/fields.h"

namespace aero::mpc {
namespace {

using spec::ArchitectureSpec;
using spec::FeedForward;
using Inputs = std::vector<std::size_t>;

constexpr std::array<std::string_view, kNumKinds> kKindNames{
    "qkv/proj",  "QK",    "softmax", "PV",     "ffn",   "act",
    "layernorm", "embed", "lm head", "argmax", "setup", "reveal"};

std::string by(std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) {
    if (!text.empty()) text += 'x';
    text += std::to_string(size);
  }
  return text;
}

struct ShapeText {
  std::string operator()(const SessionSetup&) const { return ""; }
  std::string operator()(const EmbeddingShape& s) const {
    return by({s.tokens, s.vocab_size, s.width});
  }
  std::string operator()(const WeightProduct& s) const {
    return by({s.shape.rows, s.shape.inner, s.shape.columns});
  }
  std::string operator()(const HeadProduct& s) const {
    return std::to_string(s.heads) + " x " + by({s.shape.rows, s.shape.inner, s.shape.columns});
  }
  std::string operator()(const SoftmaxShape& s) const { return by({s.rows, s.columns}); }
  std::string operator()(const LayerNorm& s) const { return by({s.rows, s.width}); }
  template <class Elements>
  std::string operator()(const Elements& s) const {
    return std::to_string(s.elements);
  }
};

bool is_foldable(spec::Norm norm) {
  return norm == spec::Norm::kFoldableChannel || norm == spec::Norm::kFoldableScalar;
}

bool is_fused(FeedForward ffn) {
  return ffn == FeedForward::kFused || ffn == FeedForward::kScaledFused;
}

class GraphBuilder {
 public:
  GraphBuilder(const ArchitectureSpec& spec, const Stack& stack, const Pass& pass)
      : spec_(spec), stack_(stack), pass_(pass), absorbed_(is_absorbed()) {}

  OperationGraph build() {
    if (stack_.setup && pass_.first) stream_ = {add(Kind::kSetup, "set-up", SessionSetup{}, {})};
    stream_ = {add(Kind::kEmbed, "token embedding",
                   EmbeddingShape{positions(pass_.queries), spec_.vocab_size, spec_.width},
                   stream_)};
    for (layer_ = 0; layer_ < spec_.num_layers; ++layer_) add_layer();
    layer_ = kOutsideLayers;
    add_head();
    return std::move(graph_);
  }

 private:
  bool is_absorbed() const {
    if (stack_.absorb_ffn == AbsorbFfn::kYes && !can_absorb_ffn(spec_))
      throw std::invalid_argument(
          "simulate: absorb_ffn must be False unless every FFN is one fused linear layer (FuFFN, "
          "ScFuFFN) and no norm but FN is left; use \"where_legal\" to absorb only then");
    return stack_.absorb_ffn != AbsorbFfn::kNo && can_absorb_ffn(spec_);
  }

  std::size_t add(Kind kind, std::string_view name, const OperationShape& shape, Inputs inputs) {
    graph_.push_back({name, layer_, kind, shape, std::move(inputs)});
    return graph_.size() - 1;
  }

  Inputs add_product(Kind kind, std::string_view name, MatmulShape shape, Inputs inputs) {
    return {add(kind, name, WeightProduct{shape}, std::move(inputs))};
  }

  // Foldable norms are constants at inference and live in the next weights. Norm or FinalNorm.
  template <class Norm>
  Inputs add_norm(std::string_view name, Norm norm, std::int64_t rows, Inputs inputs) {
    if (norm == Norm::kLayer)
      return {add(Kind::kLayerNorm, name, LayerNorm{rows, spec_.width}, std::move(inputs))};
    if (norm != Norm::kDynamicTanh && norm != Norm::kDynamicErf) return inputs;
    const auto function =
        norm == Norm::kDynamicErf ? DynamicFunction::kErf : DynamicFunction::kTanh;
    const DynamicNorm shape{function, element_count({rows, spec_.width}, "norm")};
    return {add(Kind::kLayerNorm, name, shape, std::move(inputs))};
  }

  Inputs add_block_norm(std::string_view name, std::int64_t rows, Inputs inputs) {
    return add_norm(name, spec_.norm, rows, std::move(inputs));
  }

  // The values of shaped attention are the normed stream itself: no weight can take up the gain.
  Inputs add_attention_norm() {
    const std::int64_t rows = positions(pass_.queries);
    if (!spec_.shaped_attention || !is_foldable(spec_.norm))
      return add_block_norm("norm before attention", rows, stream_);
    const std::int64_t elements = element_count({rows, spec_.width}, "gain");
    return {add(Kind::kLayerNorm, "gain before attention", WeightScaling{elements}, stream_)};
  }

  // Of all sequences.
  std::int64_t positions(std::int64_t rows) const {
    return element_count({pass_.batch, rows}, "positions");
  }

  // Rows of queries of one sequence: all positions, or only the last one where nothing else is
  // asked of the layer.
  std::int64_t query_rows() const {
    const bool last = layer_ == spec_.num_layers - 1;
    return stack_.last_layer_one_row && last ? 1 : pass_.queries;
  }

  void add_layer() {
    const std::int64_t queries = query_rows();
    const std::int64_t rows = positions(queries);
    const Inputs normed = add_attention_norm();
    const Inputs attended = add_attention(queries, normed);
    const bool has_ffn = layer_ < spec_.num_layers - spec_.num_pruned_ffns && !absorbed_;
    if (!has_ffn) {
      stream_ = attended;
      return;
    }
    if (!spec_.parallel_residual) {
      stream_ = add_ffn(rows, add_block_norm("norm before FFN", rows, attended));
      return;
    }
    // Attention and FFN read the same stream; a shaped block also shares its one norm.
    const Inputs ffn_input =
        spec_.shaped_attention ? normed : add_block_norm("norm before FFN", rows, stream_);
    stream_ = add_ffn(rows, ffn_input);
    stream_.insert(stream_.begin(), attended.begin(), attended.end());
  }

  Inputs add_attention(std::int64_t rows, const Inputs& input) {
    const std::int64_t S = pass_.keys;
    const std::int64_t d = spec_.width;
    const std::int64_t H = spec_.num_heads;
    const std::int64_t inner = H * spec_.head_dim;
    const bool shaped = spec_.shaped_attention;
    const Inputs projected =
        add_product(Kind::kQkvProj, shaped ? "queries, keys" : "queries, keys, values",
                    {positions(pass_.queries), d, (shaped ? 2 : 3) * inner}, input);
    const Inputs probabilities = add_shape_factor(rows, add_probabilities(rows, projected));
    // Shaped attention has no value projection: head h reads channels h d/H onward of its input.
    Inputs inputs = probabilities;
    const Inputs& values = shaped ? input : projected;
    inputs.insert(inputs.end(), values.begin(), values.end());
    const MatmulShape shape{rows, S, shaped ? d / H : spec_.head_dim};
    const Triangle triangle = is_skipped(rows) ? Triangle::kLeftFactor : Triangle::kNone;
    Inputs heads = {add(Kind::kPv, "heads", HeadProduct{pass_.batch * H, shape, triangle}, inputs)};
    if (shaped) return heads;
    return add_product(Kind::kQkvProj, "projection", {positions(rows), inner, d}, heads);
  }

  // A layer of one row sees all columns.
  bool is_skipped(std::int64_t rows) const { return stack_.causal_skip && rows == pass_.keys; }

  Inputs add_probabilities(std::int64_t rows, const Inputs& projected) {
    const std::int64_t S = pass_.keys;
    const std::int64_t H = pass_.batch * spec_.num_heads;
    const MatmulShape shape{rows, spec_.head_dim, S};
    const bool skip = is_skipped(rows);
    const Triangle triangle = skip ? Triangle::kResult : Triangle::kNone;
    const Inputs scores = {add(Kind::kQk, "scores", HeadProduct{H, shape, triangle},
                               add_scaling(positions(rows), add_rotation(rows, projected)))};
    return {add(Kind::kSoftmax, "softmax",
                SoftmaxShape{element_count({H, rows}, "softmax"), S, live_scores(rows)}, scores)};
  }

  // Scores that are worked on, of all heads and sequences.
  std::int64_t live_scores(std::int64_t rows) const {
    const std::int64_t S = pass_.keys;
    const std::int64_t per_head = is_skipped(rows) ? S * (S + 1) / 2 : rows * S;
    return element_count({pass_.batch, spec_.num_heads, per_head}, "softmax");
  }

  // beta P + alpha I - gamma M, the sum of the last two being one matrix per head: only beta is a
  // product, of every score.
  Inputs add_shape_factor(std::int64_t rows, const Inputs& probabilities) {
    if (!spec_.shaped_attention || !stack_.secret_shape_factors) return probabilities;
    return {add(Kind::kPv, "shape factor", WeightScaling{live_scores(rows)}, probabilities)};
  }

  // Rotary positions: the rotating channels times cos, their pairs times sin, both public, each
  // with a truncation of its own.
  Inputs add_rotation(std::int64_t rows, const Inputs& projected) {
    const auto channels =
        static_cast<std::int64_t>(spec_.rotary_fraction * static_cast<double>(spec_.head_dim));
    if (channels == 0) return projected;
    const auto truncated = [&](std::string_view name, std::int64_t of) {
      const Truncation shape{element_count({positions(of), spec_.num_heads, channels}, "rotary")};
      return add(Kind::kQk, name, shape, projected);
    };
    return {truncated("queries times cos", rows), truncated("queries times sin", rows),
            truncated("keys times cos", pass_.queries), truncated("keys times sin", pass_.queries)};
  }

  // The queries times 1/sqrt(d_k), a public constant. One temperature per head folds into W_Q, one
  // per position does not; a public one is part of the constant.
  Inputs add_scaling(std::int64_t rows, const Inputs& projected) {
    const std::int64_t elements = element_count({rows, spec_.num_heads, spec_.head_dim}, "queries");
    // As a factor of W_Q the constant needs no product and no truncation of its own: x (W_Q c) =
    // (x W_Q) c up to the rounding of the weights' last bit.
    Inputs scaled =
        stack_.fold_score_scale
            ? projected
            : Inputs{add(Kind::kQkvProj, "1/sqrt(d_k)", Truncation{elements}, projected)};
    if (!stack_.secret_temperature || spec_.temperature != spec::Temperature::kHeadPosition)
      return scaled;
    return {add(Kind::kQkvProj, "1/temperature", WeightScaling{elements}, scaled)};
  }

  Inputs add_ffn(std::int64_t rows, Inputs input) {
    const std::int64_t d = spec_.width;
    const std::int64_t F = spec_.hidden_width;
    if (is_fused(spec_.ffn))
      return add_product(Kind::kFfn, "FFN, fused", {rows, d, d}, std::move(input));
    Inputs hidden = add_product(Kind::kFfn, "FFN, in", {rows, d, F}, std::move(input));
    hidden = add_activation(rows * F, std::move(hidden));
    return add_product(Kind::kFfn, "FFN, out", {rows, F, d}, std::move(hidden));
  }

  Inputs add_activation(std::int64_t elements, Inputs input) {
    ActivationKind kind;
    switch (spec_.ffn) {
      case FeedForward::kGelu:
        kind = ActivationKind::kGelu;
        break;
      case FeedForward::kRelu:
        kind = ActivationKind::kRelu;
        break;
      case FeedForward::kLeakyReluLayer:
      case FeedForward::kLeakyReluGlobal:
        kind = ActivationKind::kLeakyRelu;
        break;
      default:
        return input;
    }
    return {add(Kind::kActivation, "activation", Activation{kind, elements}, std::move(input))};
  }

  void add_head() {
    const std::int64_t rows = positions(stack_.last_token_head ? 1 : pass_.queries);
    const Inputs normed = add_norm("final norm", spec_.final_norm, rows, stream_);
    const Inputs logits =
        add_product(Kind::kLmHead, "logits", {rows, spec_.width, spec_.vocab_size}, normed);
    const std::int64_t V = spec_.vocab_size;
    if (pass_.next_token == NextToken::kClient) {
      add(Kind::kReveal, "logits to the client", Opening{positions(V)}, logits);
      return;
    }
    const bool opened = pass_.next_token == NextToken::kArgmax;
    if (!opened && !stack_.argmax) return;
    const std::size_t token = add(Kind::kArgmax, "next token", Argmax{V, pass_.batch}, logits);
    if (opened) add(Kind::kReveal, "token to the client", Opening{pass_.batch}, {token});
  }

  const ArchitectureSpec& spec_;
  const Stack& stack_;
  const Pass& pass_;
  bool absorbed_;
  OperationGraph graph_;
  Inputs stream_;  // the operations whose sum is the residual stream
  std::int64_t layer_ = kOutsideLayers;
};

}  // namespace

std::string_view kind_name(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::string shape_text(const OperationShape& shape) { return std::visit(ShapeText{}, shape); }

bool can_absorb_ffn(const ArchitectureSpec& spec) {
  return is_fused(spec.ffn) && !spec.shaped_attention &&
         (spec.norm == spec::Norm::kNone || is_foldable(spec.norm)) &&
         (spec.final_norm == spec::FinalNorm::kNone ||
          spec.final_norm == spec::FinalNorm::kFoldable);
}

Pass whole_context(const ArchitectureSpec& spec) {
  return {.queries = spec.context_length, .keys = spec.context_length};
}

OperationGraph build_graph(const ArchitectureSpec& spec, const Stack& stack, const Pass& pass) {
  spec::validate(spec);
  const auto check = [](const char* name, std::int64_t value, std::int64_t largest) {
    if (value < 1 || value > largest)
      throw std::invalid_argument("simulate: " + std::string(name) +
                                  " must be an integer from 1 to " + std::to_string(largest) +
                                  ", got " + std::to_string(value));
  };
  check("batch", pass.batch, kMaxBatch);
  check("keys", pass.keys, spec::kMaxContext);
  check("queries", pass.queries, pass.keys);
  return GraphBuilder(spec, stack, pass).build();
}

OperationGraph build_graph(const ArchitectureSpec& spec, const Stack& stack) {
  return build_graph(spec, stack, whole_context(spec));
}

}  // namespace aero::mpc
