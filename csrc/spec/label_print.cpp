// What labels say: their text, and lists of words with their meanings.

#include <string>
#include <string_view>
#include <vector>

#include "csrc/spec/label.h"
#include "csrc/spec/label_words.h"

namespace aero::spec {
namespace {

// Meanings of numbered words have "{}" for what their number says.
std::string filled(std::string_view meaning, std::string_view content) {
  const std::size_t place = meaning.find("{}");
  return std::string(meaning.substr(0, place)).append(content).append(meaning.substr(place + 2));
}

// As lists of words show one: an open parenthesis has something in it.
std::string listed(std::string_view word) {
  return std::string(word) + (word.back() == '(' ? "...)" : "");
}

// Calls visit(text, meaning) for the words of a label, in order. What joins words has no meaning.
template <class Visit>
void for_each_word(const Label& label, Visit visit) {
  const auto of = [&](const auto& words, auto value) {
    const auto& word = word_of(words, value);
    visit(word.text, word.meaning);
  };
  const auto part_of = [&](const auto& words, auto value) {
    visit("+", "");
    of(words, value);
  };
  const bool scalar = label.norm == Norm::kFoldableScalar;
  if (label.shaped_attention) of(kShaped, true);
  if (label.entropy_regularized) of(kEntropyRegularized, true);
  of(kSoftmaxes, true);
  if (label.temperature != Temperature::kNone) of(kTemperatures, label.temperature);
  if (label.norm != Norm::kNone) part_of(kNorms, scalar ? Norm::kFoldableChannel : label.norm);
  if (scalar) of(kFoldableKinds, label.norm);
  if (is_leaky(label.ffn)) {
    part_of(kFeedForwards, FeedForward::kLeakyReluLayer);
    of(kLeakySlopes, label.ffn);
  } else if (label.ffn != FeedForward::kLinear) {
    part_of(kFeedForwards, label.ffn);
  }
  if (is_normalized(label.ffn) && label.normalized_layers != NormalizedLayers::kFfn)
    of(kNormalizedLayers, label.normalized_layers);
  for_each_numbered([&](const auto& part) {
    if (!part.is_in(label)) return;
    const auto& word = word_of(part.words, label.*part.kind);
    const std::string number = std::to_string(label.*part.number);
    visit("+", "");
    visit(std::string(word.letter) + number, filled(word.meaning, number + " tokens"));
  });
  if (label.num_pruned_ffns > 0) {
    const std::string number = std::to_string(label.num_pruned_ffns);
    visit(std::string(kPruned) + number, filled(kPrunedMeaning, number));
  }
  if (label.entropy_regularized) visit(")", "");
}

}  // namespace

std::string print_label(const Label& label) {
  std::string text;
  for_each_word(label, [&](std::string_view word, std::string_view) { text += word; });
  return text;
}

std::vector<LabelWord> label_words(const Label& label) {
  std::vector<LabelWord> words;
  for_each_word(label, [&](std::string_view word, std::string_view meaning) {
    if (!meaning.empty()) words.push_back({listed(word), std::string(meaning)});
  });
  return words;
}

std::vector<LabelWord> label_words() {
  std::vector<LabelWord> words;
  const auto append = [&](const auto& table) {
    for (const auto& word : table) words.push_back({listed(word.text), std::string(word.meaning)});
  };
  append(kShaped);
  append(kEntropyRegularized);
  append(kSoftmaxes);
  append(kTemperatures);
  append(kNorms);
  append(kFoldableKinds);
  append(kFeedForwards);
  append(kLeakySlopes);
  append(kNormalizedLayers);
  for_each_numbered([&](const auto& part) {
    for (const auto& word : part.words)
      words.push_back(
          {std::string(word.letter) + std::to_string(part.shown), filled(word.meaning, word.any)});
  });
  words.push_back({std::string(kPruned) + "K", filled(kPrunedMeaning, "K")});
  return words;
}

std::string_view label_grammar() { return kGrammar; }

}  // namespace aero::spec
