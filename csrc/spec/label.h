// Labels are read and written here alone; the grammar is in label_words.h.
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
  std::string text;
  std::string meaning;
};

// Every word, in the order of the grammar; and those of a label, with its numbers.
std::vector<LabelWord> label_words();
std::vector<LabelWord> label_words(const Label& label);

// Indented, as documents show it.
std::string_view label_grammar();

}  // namespace aero::spec
