#include "csrc/network/label_network.h"

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "csrc/spec/fields.h"

namespace aero::network {
namespace {

using spec::ArchitectureSpec;
using spec::Convolution;
using spec::FeedForward;
using spec::Temperature;
using Roles = std::initializer_list<const char*>;

bool is_fused(FeedForward ffn) {
  return ffn == FeedForward::kFused || ffn == FeedForward::kScaledFused;
}

bool is_scaled(FeedForward ffn) {
  return ffn == FeedForward::kScaled || ffn == FeedForward::kScaledFused;
}

class Writer {
 public:
  Writer(const ArchitectureSpec& spec, const Details& details) : spec_(spec), details_(details) {}

  Network network() {
    network_.context_length = spec_.context_length;
    const Value tokens = value("tokens");
    begin(0);
    stream_ = value("x");
    embed(tokens);
    const std::int64_t whole = spec_.num_layers - spec_.num_pruned_ffns;
    for (const auto& [layers, has_ffn] : {std::pair{whole, true}, {spec_.num_pruned_ffns, false}})
      if (layers > 0) {
        begin(layers);
        layer(has_ffn);
      }
    begin(0);
    head();
    return std::move(network_);
  }

 private:
  void begin(std::int64_t layers) { network_.segments.push_back({layers, {}}); }

  // The same name is the same value: the layers of two segments use them again.
  Value value(std::string_view name) {
    std::vector<std::string>& names = network_.values;
    for (Value known = 0; known < names.size(); ++known)
      if (names[known] == name) return known;
    names.emplace_back(name);
    return names.size() - 1;
  }

  Operation& add(std::string_view output, Primitive primitive, std::vector<Value> inputs) {
    std::vector<Operation>& operations = network_.segments.back().operations;
    operations.push_back({primitive, "", "", std::move(inputs), value(output)});
    return operations.back();
  }

  void named(Operation& operation, const char* name, const char* part) {
    operation.name = name;
    operation.part = part;
  }

  // Weights of the operation that was added last: "<key>.<role>".
  void weights(const std::string& key, Roles roles) {
    Operation& operation = network_.segments.back().operations.back();
    const std::string prefix = network_.segments.back().layers > 0 ? "layers.{layer}." : "";
    for (const char* role : roles) operation.weights.emplace_back(role, prefix + key + "." + role);
  }

  Value linear(std::string_view output, const char* name, const char* part, const std::string& key,
               std::int64_t in, std::int64_t out, Value input, Roles roles = {"weight", "bias"}) {
    named(add(output, Linear{in, out}, {input}), name, part);
    weights(key, roles);
    return value(output);
  }

  void embed(Value tokens) {
    named(add("x", Embed{spec_.vocab_size, spec_.width}, {tokens}), "token embedding", "embed");
    network_.segments.back().operations.back().weights = {{"weight", "token_embedding"}};
    if (details_.embedding_scale != 1.0)
      add("x", Scale{details_.embedding_scale}, {stream_}).name = "embedding scale";
    if (spec_.rotary_fraction != 0.0) return;
    named(add("places", Embed{spec_.context_length, spec_.width}, {value("positions")}),
          "position embedding", "embed");
    network_.segments.back().operations.back().weights = {{"weight", "position_embedding"}};
    add("x", Add{}, {stream_, value("places")});
  }

  // Norm or FinalNorm; the input itself where there is none.
  template <class Kind>
  Value norm(std::string_view output, const char* name, const std::string& key, Kind kind,
             Value input) {
    if (kind == Kind::kNone) return input;
    const auto of = [&](NormKind what, Roles roles) {
      const double epsilon = what == NormKind::kLayer ? details_.epsilon : 0.0;
      named(add(output, Norm{what, spec_.width, epsilon}, {input}), name, "layernorm");
      weights(key, roles);
    };
    if (kind == Kind::kLayer)
      of(NormKind::kLayer, {"weight", "bias"});
    else if (kind == Kind::kDynamicTanh)
      of(NormKind::kDynamicTanh, {"weight", "bias", "alpha"});
    else if (kind == Kind::kDynamicErf)
      of(NormKind::kDynamicErf, {"weight", "bias", "alpha", "shift"});
    else
      of(NormKind::kDiagonal, {"scale"});
    return value(output);
  }

  void layer(bool has_ffn) {
    const bool shaped = spec_.shaped_attention;
    // The values of shaped attention are the normed stream itself: no weight can take up a gain.
    const bool gain = shaped && (spec_.norm == spec::Norm::kFoldableChannel ||
                                 spec_.norm == spec::Norm::kFoldableScalar);
    const Value normed = norm("normed", gain ? "gain before attention" : "norm before attention",
                              "norm_1", spec_.norm, stream_);
    const Value attended = attention(normed);
    if (shaped) {
      std::vector<Value> parts = {attended};
      if (has_ffn) parts.push_back(scaled("fed", "gain", feed_forward(normed)));
      add("x", Add{}, parts);
      return;
    }
    if (!spec_.parallel_residual) add("x", Add{}, {stream_, attended});
    if (!has_ffn) {
      if (spec_.parallel_residual) add("x", Add{}, {stream_, attended});
      return;
    }
    const Value input = norm("normed", "norm before FFN", "norm_2", spec_.norm, stream_);
    const bool factors = is_scaled(spec_.ffn);
    std::vector<Value> parts = fed_values(input);
    if (factors)
      for (Value& fed : parts) fed = scaled(network_.values[fed], "1/alpha", fed);
    if (spec_.parallel_residual) parts.insert(parts.begin(), attended);
    parts.insert(parts.begin(), factors ? scaled("kept", "beta", stream_) : stream_);
    add("x", Add{}, parts);
  }

  // The summands of the FFN with its convolution. They are not added up here, so that 1/alpha goes
  // into the weights of each.
  std::vector<Value> fed_values(Value input) {
    std::vector<Value> fed = {feed_forward(input)};
    if (spec_.convolution != Convolution::kFull || is_fused(spec_.ffn)) return fed;
    const std::int64_t earlier = spec_.convolution_taps - 1;
    add("earlier", Shift{1}, {input});
    fed.push_back(linear("convolved", "convolution", "ffn", "convolution", earlier * spec_.width,
                         spec_.width, unfolded(value("earlier"), earlier), {"weight"}));
    return fed;
  }

  // How many tokens a product reads that has the convolution in its weights, or has none.
  std::int64_t taps_if(bool convolves) const { return convolves ? spec_.convolution_taps : 1; }

  // Each token beside those before it, for one product with the weights of all taps.
  Value unfolded(Value input, std::int64_t taps) {
    if (taps == 1) return input;
    add("unfolded", Unfold{taps}, {input});
    return value("unfolded");
  }

  Value scaled(std::string_view output, const char* name, Value input) {
    add(output, Scale{}, {input}).name = name;
    return value(output);
  }

  Value attention(Value input) {
    const bool shaped = spec_.shaped_attention;
    const std::int64_t H = spec_.num_heads, D = spec_.head_dim, d = spec_.width;
    const std::int64_t inner = H * D;
    const std::int64_t taps = taps_if(spec_.convolution == Convolution::kTokenShift);
    const Value projected =
        linear("projected", shaped ? "queries, keys" : "queries, keys, values", "qkv/proj",
               "attention.projection", taps * d, (shaped ? 2 : 3) * inner, unfolded(input, taps));
    const auto heads = [&](const char* name, Value from, std::int64_t start, std::int64_t width) {
      add(name, SplitHeads{start, H, width}, {from});
      return value(name);
    };
    const Value queries = rotated("queries", heads("queries", projected, 0, D));
    const Value keys = rotated("keys", heads("keys", projected, inner, D));
    const Value values =
        shaped ? heads("values", input, 0, d / H) : heads("values", projected, 2 * inner, D);
    add_scores(queries, keys);
    named(add("weights", Softmax{.heads = H, .window = spec_.window}, {value("scores")}), "softmax",
          "softmax");
    if (shaped) {
      named(add("weights", Shape{H}, {value("weights")}), "shape factor", "PV");
      weights("attention", {"identity", "softmax", "uniform"});
    }
    named(add("heads", WeightedSum{H, H, shaped ? d / H : D}, {value("weights"), values}), "heads",
          "PV");
    add("joined", JoinHeads{}, {value("heads")});
    if (shaped) return value("joined");
    return linear("attended", "projection", "qkv/proj", "attention.output", inner, d,
                  value("joined"));
  }

  Value rotated(const char* name, Value heads) {
    const auto channels =
        static_cast<std::int64_t>(spec_.rotary_fraction * static_cast<double>(spec_.head_dim));
    if (channels > 0)
      named(add(name, Rotate{spec_.num_heads, channels, details_.rotary_base}, {heads}), name,
            "QK");
    return heads;
  }

  void add_scores(Value queries, Value keys) {
    const Temperature temperature = spec_.temperature;
    const Scores scores{.heads = spec_.num_heads,
                        .key_heads = spec_.num_heads,
                        .head_dim = spec_.head_dim,
                        .scale = 1 / std::sqrt(static_cast<double>(spec_.head_dim)),
                        .temperature = temperature != Temperature::kNone,
                        .per_position = temperature == Temperature::kHeadPosition};
    named(add("scores", scores, {queries, keys}), "scores", "QK");
    if (scores.temperature) weights("attention", {"inverse_temperature"});
  }

  Value feed_forward(Value input) {
    const std::int64_t d = spec_.width, F = spec_.hidden_width;
    const bool joined = spec_.convolution == Convolution::kFull && is_fused(spec_.ffn);
    const std::int64_t taps = taps_if(joined || spec_.convolution == Convolution::kDepthwise);
    const Value read = unfolded(input, taps);
    if (is_fused(spec_.ffn))
      return linear("fed", "FFN, fused", "ffn", "feed_forward", taps * d, d, read);
    const Value hidden = linear("hidden", "FFN, in", "ffn", "feed_forward.0", taps * d, F, read);
    activation(hidden);
    return linear("fed", "FFN, out", "ffn", "feed_forward.1", F, d, hidden);
  }

  void activation(Value hidden) {
    const auto of = [&](Function function) {
      named(add("hidden", Activation{.function = function, .width = spec_.hidden_width}, {hidden}),
            "activation", "act");
    };
    switch (spec_.ffn) {
      case FeedForward::kGelu:
        return of(details_.exact_gelu ? Function::kGeluErf : Function::kGeluTanh);
      case FeedForward::kRelu:
        return of(Function::kRelu);
      case FeedForward::kLeakyReluLayer:
      case FeedForward::kLeakyReluGlobal:
        return of(Function::kLeakyRelu);
      default:
        return;
    }
  }

  void head() {
    const Value normed = norm("normed", "final norm", "final_norm", spec_.final_norm, stream_);
    network_.result =
        linear("logits", "logits", "lm head", "head", spec_.width, spec_.vocab_size, normed);
    if (!spec_.tied_embeddings) return;
    Operation& operation = network_.segments.back().operations.back();
    std::get<Linear>(operation.primitive).transposed = true;
    operation.weights.front().second = "token_embedding";
  }

  const ArchitectureSpec& spec_;
  const Details& details_;
  Network network_;
  Value stream_ = 0;
};

}  // namespace

Network describe(const spec::ArchitectureSpec& spec, const Details& details) {
  spec::validate(spec);
  return Writer(spec, details).network();
}

}  // namespace aero::network
