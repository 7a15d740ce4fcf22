// The label grammar: the one place where labels are read and written.
//
//   label := ["SOTA:"] (net | "EReg(" net ")")
//   net   := "SM" ["(t" [":head" | ":scalar"] ")"] ["+" norm] ["+" ffn] ["+" conv] ["_i" K]
//   norm  := "LN" | "FN" ["(channel)" | "(scalar)"] | "DyT" | "Derf"
//   ffn   := "G" | "R" | "LR(" ("layer" | "global") ")" | ("WN" | "SN") "FFN" ["(" set ")"]
//          | "FuFFN" | "ScFFN" | "ScFuFFN"
//   conv  := ("C" | "D" | "S") taps, from 2 to 8
//   set   := "ffn" | "qk" | "qk+ffn" | "qkv+ffn" | "qkvo+ffn"
//
// Without ffn the FFN is two linear layers. Upper and lower case are read alike; what is printed is
// canonical: the case above, and no defaults ("(channel)", "(ffn)", "_i0").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/spec/architecture_spec.h"

namespace aero::spec {

// Throws std::invalid_argument naming the position (from 1), what was expected there and the
// nearest valid label.
Label parse_label(std::string_view text);

std::string print_label(const Label& label);

// A word of the grammar and its meaning, as help and manual print them.
struct LabelWord {
  std::string_view text;
  std::string_view meaning;
};

// Every word, in the order of the grammar.
std::vector<LabelWord> label_words();

}  // namespace aero::spec
