// A network as a list of operations over named values: its shape, no numbers. The meaning of every
// primitive is in python/aero/network/numpy_reader.py; this side prices it.
//
// Letters: B batch, T tokens, C width, H heads, G key heads, D head width, V vocabulary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace aero::network {

// The one list of the primitives' fields, for files, Python and checks: `fields` calls
// visit(name, member) for every number, and visit(name, member, words) for every choice. Sizes are
// integers above 0, but for `start`, `window` and a source's `positions`. A file may hold a list
// for a real number: one for each time that its layer is repeated. No price depends on them.
//
// What is true of some primitives alone, they say by a constant:
//   kInputs        how many values it reads, if not one
//   kTakesMore     or any number above that
//   kTakesLengths  and then, of padded sequences, the value "lengths"
//   kIsLocal       each party computes it on its own shares and sends nothing
//   kKeepsColumns  it makes as many columns as its first value has
//   kMovesTokens   it reads earlier positions than the one it makes, each channel from its own

// Values of the client's beside the tokens, as many positions as the context has, or of their own:
// [B, positions, width]. Pictures, sounds, the tokens of an encoder. They become shares without a
// protocol: the parties' common randomness is one of the two.
struct Source {
  std::int64_t positions = 0;  // 0: those of the context
  std::int64_t width = 0;
  static constexpr std::size_t kInputs = 0;
  static constexpr bool kIsLocal = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("positions", positions);
    visit("width", width);
  }
};

// The same numbers, and public or secret ones beside them, in other places: patches of a picture,
// windows of a convolution, rows in front. [B, *, *] -> [B, positions, width].
struct Rearrange {
  std::int64_t positions = 0;
  std::int64_t width = 0;
  static constexpr bool kIsLocal = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("positions", positions);
    visit("width", width);
  }
};

// Rows of a table, by token or, of the positions, the first T: [B, T] -> [B, T, width].
struct Embed {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("rows", rows);
    visit("width", width);
  }
};

// x W + b, the weight [in, out], or its transpose where it is a token embedding's.
struct Linear {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool transposed = false;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("in", in);
    visit("out", out);
    visit("transposed", transposed);
  }
};

// Channels start, start + 1, ... as heads: [B, T, *] -> [B, heads, T, head_dim].
struct SplitHeads {
  std::int64_t start = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  static constexpr bool kIsLocal = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("start", start);
    visit("heads", heads);
    visit("head_dim", head_dim);
  }
};

// [B, H, T, D] -> [B, T, H D].
struct JoinHeads {
  static constexpr bool kIsLocal = true;
  template <class Visit>
  void fields(Visit&&) {}
};

// Turns the channel pairs (i, i + channels / 2) of each head by position * base^(-2 i / channels).
struct Rotate {
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  double base = 10000.0;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("heads", heads);
    visit("channels", channels);
    visit("base", base);
  }
};

// scale * inverse_temperature[h, t] * q k^T, H / G query heads to each key head; above 0 the soft
// cap c makes c tanh(s / c) of each score s.
struct Scores {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1.0;
  bool temperature = false;   // there is one
  bool per_position = false;  // of each head and position; one per head folds into weights
  double soft_cap = 0.0;
  static constexpr std::size_t kInputs = 2;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("heads", heads);
    visit("key_heads", key_heads);
    visit("head_dim", head_dim);
    visit("scale", scale);
    visit("temperature", temperature);
    visit("per_position", per_position);
    visit("soft_cap", soft_cap);
  }
};

// Of each row of scores, over the keys up to its position if causal, over the last `window` of
// those if that is above 0, and over those of its own sequence where the lengths are given. A
// weight `bias` is added to the scores, by head and distance; a weight `sink` is one more score of
// each row, by head, whose share nobody gets.
struct Softmax {
  std::int64_t heads = 0;
  bool causal = true;
  std::int64_t window = 0;
  static constexpr bool kTakesLengths = true, kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("heads", heads);
    visit("causal", causal);
    visit("window", window);
  }
};

// identity I + softmax P - uniform M, M the means of all positions so far, a factor per head each.
struct Shape {
  std::int64_t heads = 0;
  static constexpr bool kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("heads", heads);
  }
};

// Weights [B, H, T, S] times values [B, G, S, D].
struct WeightedSum {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t head_dim = 0;
  static constexpr std::size_t kInputs = 2;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("heads", heads);
    visit("key_heads", key_heads);
    visit("head_dim", head_dim);
  }
};

enum class NormKind : std::uint8_t { kLayer, kRms, kDiagonal, kDynamicTanh, kDynamicErf };
inline constexpr std::array<std::string_view, 5> kNormKinds{"layer", "rms", "diagonal",
                                                            "dynamic_tanh", "dynamic_erf"};

// Over the channels of each position, or of each head of it.
struct Norm {
  NormKind kind = NormKind::kLayer;
  std::int64_t width = 0;
  double epsilon = 0.0;  // of kLayer and kRms
  static constexpr bool kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("kind", kind, kNormKinds);
    visit("width", width);
    visit("epsilon", epsilon);
  }
};

enum class Function : std::uint8_t {
  kRelu,
  kLeakyRelu,
  kGeluTanh,
  kGeluErf,
  kSilu,
  kTanh,
  kSigmoid,
  kExp,
  kReciprocal,
  kRsqrt,
  kReluSquared,
};
inline constexpr std::array<std::string_view, 11> kFunctions{
    "relu",    "leaky_relu", "gelu_tanh",  "gelu_erf", "silu",        "tanh",
    "sigmoid", "exp",        "reciprocal", "rsqrt",    "relu_squared"};

struct Activation {
  Function function = Function::kRelu;
  std::int64_t width = 0;
  double slope = 0.0;  // of kLeakyRelu
  static constexpr bool kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("function", function, kFunctions);
    visit("width", width);
    visit("slope", slope);
  }
};

// Element by element of two values.
struct Multiply {
  std::int64_t width = 0;
  static constexpr std::size_t kInputs = 2;
  static constexpr bool kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("width", width);
  }
};

// Of two or more values.
struct Add {
  static constexpr bool kTakesMore = true, kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&&) {}
};

// By a factor, public or of the weights: it goes into the weights before or behind.
struct Scale {
  double factor = 1.0;
  static constexpr bool kIsLocal = true, kKeepsColumns = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("factor", factor);
  }
};

// Along the tokens, by `tokens` to later positions; zeros come in.
struct Shift {
  std::int64_t tokens = 0;
  static constexpr bool kIsLocal = true, kMovesTokens = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("tokens", tokens);
  }
};

// Each token with the `taps - 1` before it, its own channels first: [B, T, C] -> [B, T, taps C];
// zeros come in. A linear layer after it is a causal convolution, in one product.
struct Unfold {
  std::int64_t taps = 0;
  static constexpr bool kIsLocal = true, kMovesTokens = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("taps", taps);
  }
};

// [B, T, C] -> [B, C]: of each sequence the last position, the first, or a mean, whose factor goes
// into the weights behind.
enum class PoolKind : std::uint8_t { kLast, kFirst, kMean };
inline constexpr std::array<std::string_view, 3> kPoolKinds{"last", "first", "mean"};

struct Pool {
  PoolKind kind = PoolKind::kLast;
  static constexpr bool kIsLocal = true, kTakesLengths = true;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("kind", kind, kPoolKinds);
  }
};

// The first index of the largest of V values.
struct Argmax {
  std::int64_t width = 0;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("width", width);
  }
};

// The weights of the experts that each token takes, 0 of the others: [B, T, experts] twice. Of the
// router's logits, by the softmax over all of them, the logistic function, or the softmax over the
// chosen ones alone; with groups only in the `chosen_groups` whose `group_best` largest have the
// largest sum. `normalized`: they add up to 1. Revealed, both parties see the choice, and the
// result has the chosen ones only.
enum class Scoring : std::uint8_t { kSoftmax, kSigmoid, kSoftmaxOfChosen };
inline constexpr std::array<std::string_view, 3> kScorings{"softmax", "sigmoid",
                                                           "softmax_of_chosen"};

struct Route {
  std::int64_t experts = 0;
  std::int64_t chosen = 0;
  Scoring scoring = Scoring::kSoftmax;
  bool normalized = false;
  bool revealed = false;
  std::int64_t groups = 1;
  std::int64_t chosen_groups = 1;
  std::int64_t group_best = 1;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("experts", experts);
    visit("chosen", chosen);
    visit("scoring", scoring, kScorings);
    visit("normalized", normalized);
    visit("revealed", revealed);
    visit("groups", groups);
    visit("chosen_groups", chosen_groups);
    visit("group_best", group_best);
  }
};

using Primitive = std::variant<Embed, Linear, SplitHeads, JoinHeads, Rotate, Scores, Softmax, Shape,
                               WeightedSum, Norm, Activation, Multiply, Add, Scale, Shift, Unfold,
                               Pool, Argmax, Source, Rearrange, Route>;

// As files name them.
inline constexpr std::array<std::string_view, std::variant_size_v<Primitive>> kPrimitiveNames{
    "embed", "linear",       "split_heads", "join_heads", "rotate",   "scores",    "softmax",
    "shape", "weighted_sum", "norm",        "activation", "multiply", "add",       "scale",
    "shift", "unfold",       "pool",        "argmax",     "source",   "rearrange", "route"};

// A value's place in `Network::values`.
using Value = std::size_t;

// The values that are given: ids [B, T], 0 to T - 1, and how many tokens of each sequence are its
// own, [B]; those behind them are padding.
inline constexpr std::array<std::string_view, 3> kGiven{"tokens", "positions", "lengths"};

struct Operation {
  Primitive primitive;
  std::string name;  // "queries, keys, values"
  std::string part;  // that reports group by: "qkv/proj"; empty for what costs nothing
  std::vector<Value> inputs;
  Value output = 0;
  // Of its weights: role and tensor, "{layer}" standing for the layer's number.
  std::vector<std::pair<std::string, std::string>> weights = {};

  bool has_weight(std::string_view role) const {
    for (const auto& [name, tensor] : weights)
      if (name == role) return true;
    return false;
  }
};

template <class One>
bool is(const Operation& operation) {
  return std::holds_alternative<One>(operation.primitive);
}

// Operations that run `layers` times, each time as the next layer with weights of its own; 0: once,
// and belonging to no layer.
struct Segment {
  std::int64_t layers = 0;
  std::vector<Operation> operations;
};

struct Network {
  std::vector<std::string> values;  // names
  std::vector<Segment> segments;
  std::int64_t context_length = 0;
  Value result = 0;
};

// Throws std::invalid_argument naming the operation and the field: sizes out of range, values that
// are read before they are written, a result that nothing writes.
void validate(const Network& network);

}  // namespace aero::network
