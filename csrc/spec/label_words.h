// The words of the label grammar and their meanings; only csrc/spec/label.cpp reads them.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "csrc/spec/architecture_spec.h"

namespace aero::spec {

// Parser, printer and the search for the nearest label all use these tables. No word is the
// beginning of another in its table, so at most one matches. An option in parentheses is a word of
// its own, so that an error points at it.
template <class Enum>
struct Word {
  std::string_view text;
  Enum value;
  std::string_view meaning;
};

inline constexpr std::string_view kShaped = "SOTA:";
inline constexpr std::string_view kEntropyRegularized = "EReg(";
inline constexpr std::string_view kSoftmax = "SM";
inline constexpr std::string_view kPruned = "_i";

inline constexpr std::array kTemperatures{
    Word{"(t)", Temperature::kHeadPosition, "a learned temperature for every head and position"},
    Word{"(t:head)", Temperature::kHead, "a learned temperature for every head"},
    Word{"(t:scalar)", Temperature::kScalar, "one learned temperature per layer"}};

inline constexpr std::array kNorms{
    Word{"LN", Norm::kLayer, "LayerNorm before attention and before the FFN"},
    Word{"FN", Norm::kFoldableChannel,
         "a normalization by running statistics, which folds into the weights after training"},
    Word{"DyT", Norm::kDynamicTanh,
         "Dynamic Tanh in place of the norm, the tanh of every element (arXiv 2503.10622)"},
    Word{"Derf", Norm::kDynamicErf,
         "Dynamic erf in place of the norm, the erf of every element (arXiv 2512.10938)"}};

inline constexpr std::array kFoldableKinds{
    Word{"(channel)", Norm::kFoldableChannel, "FN with one statistic per channel; the default"},
    Word{"(scalar)", Norm::kFoldableScalar, "FN with one statistic for all channels"}};

inline constexpr std::array kFeedForwards{
    Word{"G", FeedForward::kGelu, "an FFN with GELU"},
    Word{"R", FeedForward::kRelu, "an FFN with ReLU"},
    Word{"LR", FeedForward::kLeakyReluLayer, "an FFN with a leaky ReLU of learned slope"},
    Word{"WNFFN", FeedForward::kWeightNorm, "two linear layers under weight normalization"},
    Word{"SNFFN", FeedForward::kSpectralNorm, "two linear layers under spectral normalization"},
    Word{"FuFFN", FeedForward::kFused, "one linear layer in place of the FFN"},
    Word{"ScFFN", FeedForward::kScaled, "two linear layers, with learned scales alpha and beta"},
    Word{"ScFuFFN", FeedForward::kScaledFused,
         "one linear layer in place of the FFN, with learned scales alpha and beta"}};

inline constexpr std::array kLeakySlopes{
    Word{"(layer)", FeedForward::kLeakyReluLayer, "LR with one slope per layer"},
    Word{"(global)", FeedForward::kLeakyReluGlobal, "LR with one slope for the network"}};

inline constexpr std::array kNormalizedLayers{
    Word{"(ffn)", NormalizedLayers::kFfn, "WN or SN of the FFN alone; the default"},
    Word{"(qk)", NormalizedLayers::kQk, "WN or SN of the query and key projections instead"},
    Word{"(qk+ffn)", NormalizedLayers::kQkFfn, "WN or SN of queries, keys and the FFN"},
    Word{"(qkv+ffn)", NormalizedLayers::kQkvFfn, "WN or SN of queries, keys, values and the FFN"},
    Word{"(qkvo+ffn)", NormalizedLayers::kQkvoFfn,
         "WN or SN of all projections of attention and the FFN"}};

// A letter and a number of taps, which stands for all of them.
inline constexpr std::array kConvolutions{
    Word{"C4", Convolution::kFull,
         "a causal convolution along 4 tokens, or 2 to 8, with a matrix for each earlier one; the "
         "FFN "
         "is its newest tap"},
    Word{"D4", Convolution::kDepthwise,
         "a depthwise causal convolution of as many taps before the FFN"},
    Word{"S4", Convolution::kTokenShift,
         "a depthwise causal convolution of as many taps before queries, keys and values"}};

inline bool is_leaky(FeedForward ffn) {
  return ffn == FeedForward::kLeakyReluLayer || ffn == FeedForward::kLeakyReluGlobal;
}

inline bool is_normalized(FeedForward ffn) {
  return ffn == FeedForward::kWeightNorm || ffn == FeedForward::kSpectralNorm;
}

template <class Words, class Enum>
std::string_view text_of(const Words& words, Enum value) {
  return std::find_if(words.begin(), words.end(), [&](auto word) { return word.value == value; })
      ->text;
}

}  // namespace aero::spec
