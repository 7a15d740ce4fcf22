// One network of the AERO family: its label's choices and its sizes, nothing else.
//
// Letters: T context_length, d width, H num_heads, d_k head_dim, L num_layers, V vocab_size, F
// hidden_width.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace aero::spec {

// Every choice has `words_of`: the lower-case word of each enumerator, in the order of the
// declaration, for Python, JSON and error messages.

enum class Family : std::uint8_t { kGpt2, kPythia };
constexpr std::array<std::string_view, 2> words_of(Family) { return {"gpt2", "pythia"}; }

enum class Norm : std::uint8_t {
  kNone,
  kLayer,
  kFoldableChannel,
  kFoldableScalar,
  kDynamicTanh,
  kDynamicErf,
};
constexpr std::array<std::string_view, 6> words_of(Norm) {
  return {"none", "layer", "foldable_channel", "foldable_scalar", "dynamic_tanh", "dynamic_erf"};
}

enum class FinalNorm : std::uint8_t { kNone, kLayer, kFoldable, kDynamicTanh, kDynamicErf };
constexpr std::array<std::string_view, 5> words_of(FinalNorm) {
  return {"none", "layer", "foldable", "dynamic_tanh", "dynamic_erf"};
}

enum class FeedForward : std::uint8_t {
  kGelu,
  kRelu,
  kLeakyReluLayer,
  kLeakyReluGlobal,
  kLinear,
  kWeightNorm,
  kSpectralNorm,
  kFused,
  kScaled,
  kScaledFused,
};
constexpr std::array<std::string_view, 10> words_of(FeedForward) {
  return {"gelu",   "relu",        "leaky_relu_layer", "leaky_relu_global",
          "linear", "weight_norm", "spectral_norm",    "fused",
          "scaled", "scaled_fused"};
}

// Linear layers under weight or spectral normalization.
enum class NormalizedLayers : std::uint8_t { kFfn, kQk, kQkFfn, kQkvFfn, kQkvoFfn };
constexpr std::array<std::string_view, 5> words_of(NormalizedLayers) {
  return {"ffn", "qk", "qk+ffn", "qkv+ffn", "qkvo+ffn"};
}

// Along the tokens: every position also reads the `taps - 1` before it. A full one, a matrix for
// each of those, adds to the FFN, which is the newest tap; a depthwise one, a factor per channel
// and tap, makes what the FFN reads; a token shift is depthwise and makes what queries, keys and
// values read.
enum class Convolution : std::uint8_t { kNone, kFull, kDepthwise, kTokenShift };
constexpr std::array<std::string_view, 4> words_of(Convolution) {
  return {"none", "full", "depthwise", "token_shift"};
}

inline constexpr std::int64_t kMaxTaps = 8;

enum class Temperature : std::uint8_t { kNone, kHeadPosition, kHead, kScalar };
constexpr std::array<std::string_view, 4> words_of(Temperature) {
  return {"none", "head_position", "head", "scalar"};
}

template <class Enum>
constexpr std::string_view name_of(Enum value) {
  return words_of(value)[static_cast<std::size_t>(value)];
}

// What a label says; the default member values are those of `SM`.
struct Label {
  bool shaped_attention = false;     // `SOTA:`, the networks of He & Hofmann (2024)
  bool entropy_regularized = false;  // `EReg(...)`, trained with the entropy penalty
  Temperature temperature = Temperature::kNone;
  Norm norm = Norm::kNone;  // before attention and before the FFN
  FeedForward ffn = FeedForward::kLinear;
  NormalizedLayers normalized_layers = NormalizedLayers::kFfn;  // for weight and spectral norm
  Convolution convolution = Convolution::kNone;
  std::int64_t convolution_taps = 1;  // tokens that it reads, its own included; 1 without one
  std::int64_t num_pruned_ffns = 0;   // K, the deepest FFNs are absent

  bool operator==(const Label&) const = default;
};

// The default member values are the GPT-2 (small) network `SM` at T = 128.
struct ArchitectureSpec : Label {
  Family family = Family::kGpt2;
  std::int64_t num_layers = 12;       // L
  std::int64_t num_heads = 12;        // H
  std::int64_t head_dim = 64;         // d_k, need not be d / H
  std::int64_t width = 768;           // d
  std::int64_t hidden_width = 3072;   // F, inner width of an unfused FFN
  std::int64_t context_length = 128;  // T
  std::int64_t vocab_size = 50257;    // V
  bool tied_embeddings = true;        // the head is the transposed token embedding
  double rotary_fraction = 0.0;       // share of d_k that rotates; 0: learned absolute positions
  bool parallel_residual = false;     // attention and FFN read the same stream
  std::int64_t window = 0;            // tokens that a query sees, its own included; 0: all
  FinalNorm final_norm = FinalNorm::kNone;

  bool operator==(const ArchitectureSpec&) const = default;
};

}  // namespace aero::spec
