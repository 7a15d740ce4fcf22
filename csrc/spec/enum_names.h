// The lower-case word of every choice, for Python, JSON and error messages.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "csrc/spec/architecture_spec.h"

namespace aero::spec {

// `words` is indexed by the enumerator's value, in the order of the enum's declaration.
template <class Enum>
struct EnumNames;

template <>
struct EnumNames<Family> {
  static constexpr std::array<std::string_view, 2> words{"gpt2", "pythia"};
};

template <>
struct EnumNames<Norm> {
  static constexpr std::array<std::string_view, 6> words{
      "none", "layer", "foldable_channel", "foldable_scalar", "dynamic_tanh", "dynamic_erf"};
};

template <>
struct EnumNames<FinalNorm> {
  static constexpr std::array<std::string_view, 5> words{"none", "layer", "foldable",
                                                         "dynamic_tanh", "dynamic_erf"};
};

template <>
struct EnumNames<FeedForward> {
  static constexpr std::array<std::string_view, 10> words{
      "gelu",          "relu",  "leaky_relu_layer", "leaky_relu_global", "linear", "weight_norm",
      "spectral_norm", "fused", "scaled",           "scaled_fused"};
};

template <>
struct EnumNames<NormalizedLayers> {
  static constexpr std::array<std::string_view, 5> words{"ffn", "qk", "qk+ffn", "qkv+ffn",
                                                         "qkvo+ffn"};
};

template <>
struct EnumNames<Convolution> {
  static constexpr std::array<std::string_view, 4> words{"none", "full", "depthwise",
                                                         "token_shift"};
};

template <>
struct EnumNames<Temperature> {
  static constexpr std::array<std::string_view, 4> words{"none", "head_position", "head", "scalar"};
};

template <class Enum>
constexpr std::string_view name_of(Enum value) {
  return EnumNames<Enum>::words[static_cast<std::size_t>(value)];
}

}  // namespace aero::spec
