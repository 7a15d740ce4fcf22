// The label grammar, its words and their meanings, and what each numbered part adds to a network.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "csrc/spec/architecture_spec.h"

namespace aero::spec {

inline constexpr std::string_view kGrammar =
    R"grammar(    label := ["SOTA:"] (net | "EReg(" net ")")
    net   := "SM" ["(t" [":head" | ":scalar"] ")"] ["+" norm] ["+" ffn] ["+" conv] ["_i" K]
    norm  := "LN" | "FN" ["(channel)" | "(scalar)"] | "DyT" | "Derf"
    ffn   := "G" | "R" | "LR(" ("layer" | "global") ")" | ("WN" | "SN") "FFN" ["(" set ")"]
           | "FuFFN" | "ScFFN" | "ScFuFFN"
    conv  := ("C" | "D" | "S") taps, from 2 to 8
    set   := "ffn" | "qk" | "qk+ffn" | "qkv+ffn" | "qkvo+ffn"
)grammar";

// Parser, printer and the search for the nearest label all use these tables. No word is the
// beginning of another in its table, so at most one matches. An option in parentheses is a word of
// its own, so that an error points at it.
template <class Enum>
struct Word {
  std::string_view text;
  Enum value;
  std::string_view meaning;
};

inline constexpr std::array kShaped{
    Word{"SOTA:", true, "shaped attention without value projections, after He and Hofmann (2024)"}};
inline constexpr std::array kEntropyRegularized{
    Word{"EReg(", true, "trained with the entropy penalty"}};
inline constexpr std::array kSoftmaxes{
    Word{"SM", true, "softmax attention; the only nonlinearity that every network keeps"}};

// A number stands behind it, and in its meaning for "{}".
inline constexpr std::string_view kPruned = "_i";
inline constexpr std::string_view kPrunedMeaning = "the {} deepest FFNs are absent";

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

// What a part adds to a network. A matrix [d, d] is a product of each token, a factor [d] is not.
struct AddedWeights {
  std::int64_t ffn_matrices = 0;
  std::int64_t ffn_factors = 0;  // of each layer that has an FFN
  std::int64_t layer_factors = 0;
};

// A letter, behind which stands a number of tokens.
template <class Kind>
struct NumberedWord {
  std::string_view letter;
  Kind value;
  std::string_view meaning;  // "{}" stands for the tokens
  std::string_view any;      // what "{}" is where the number is open
  AddedWeights (*added)(std::int64_t tokens);
};

// A part of a letter and a number. Parser, printer, checks of fields and counts go through them.
template <class Kind, std::size_t kWords>
struct NumberedPart {
  Kind Label::* kind;
  std::int64_t Label::* number;
  std::int64_t largest;  // from 2; 1 without the part
  std::int64_t shown;    // stands for all in lists of words
  std::string_view what;
  std::array<NumberedWord<Kind>, kWords> words;

  constexpr bool is_in(const Label& label) const { return label.*kind != Kind::kNone; }
};

inline constexpr std::tuple kNumberedParts{NumberedPart<Convolution, 3>{
    &Label::convolution,
    &Label::convolution_taps,
    kMaxTaps,
    4,
    "a number of taps",
    {{{"C", Convolution::kFull,
       "a causal convolution along {}, with a matrix for each earlier one; the FFN is its newest "
       "tap",
       "4 tokens, or 2 to 8",
       [](std::int64_t taps) { return AddedWeights{.ffn_matrices = taps - 1}; }},
      {"D", Convolution::kDepthwise, "a depthwise causal convolution of {} before the FFN",
       "as many taps", [](std::int64_t taps) { return AddedWeights{.ffn_factors = taps}; }},
      {"S", Convolution::kTokenShift,
       "a depthwise causal convolution of {} before queries, keys and values", "as many taps",
       [](std::int64_t taps) { return AddedWeights{.layer_factors = taps}; }}}}}};

// Calls visit for every numbered part.
template <class Visit>
constexpr void for_each_numbered(Visit&& visit) {
  std::apply([&](const auto&... part) { (visit(part), ...); }, kNumberedParts);
}

inline bool is_leaky(FeedForward ffn) {
  return ffn == FeedForward::kLeakyReluLayer || ffn == FeedForward::kLeakyReluGlobal;
}

inline bool is_normalized(FeedForward ffn) {
  return ffn == FeedForward::kWeightNorm || ffn == FeedForward::kSpectralNorm;
}

template <class Words, class Enum>
const auto& word_of(const Words& words, Enum value) {
  return *std::find_if(words.begin(), words.end(), [&](auto word) { return word.value == value; });
}

}  // namespace aero::spec
