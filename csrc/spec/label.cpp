#include "csrc/spec/label.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "csrc/spec/fields.h"
#include "csrc/spec/label_words.h"
#include "csrc/spec/nearest_word.h"

namespace aero::spec {
namespace {

// Calls visit for every label the grammar gives with the numbers of `label` (1,728 of them), plain
// ones first.
template <class Visit>
void for_each_label(Label label, Visit visit) {
  const auto visit_ffns = [&] {
    label.ffn = FeedForward::kLinear;
    visit(label);
    for (const auto& ffn : kFeedForwards) {
      label.ffn = ffn.value;
      if (is_leaky(ffn.value)) {
        for (const auto& slope : kLeakySlopes) visit((label.ffn = slope.value, label));
      } else if (is_normalized(ffn.value)) {
        for (const auto& set : kNormalizedLayers)
          visit((label.normalized_layers = set.value, label));
        label.normalized_layers = NormalizedLayers::kFfn;
      } else {
        visit(label);
      }
    }
  };
  for (const bool shaped : {false, true})
    for (const bool regularized : {false, true})
      for (const Temperature temperature : {Temperature::kNone, Temperature::kHeadPosition,
                                            Temperature::kHead, Temperature::kScalar})
        for (const Norm norm : {Norm::kNone, Norm::kLayer, Norm::kFoldableChannel,
                                Norm::kFoldableScalar, Norm::kDynamicTanh, Norm::kDynamicErf}) {
          label.shaped_attention = shaped;
          label.entropy_regularized = regularized;
          label.temperature = temperature;
          label.norm = norm;
          visit_ffns();
        }
}

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// Lower-case text as the canonical form spells it, which omits the default options.
std::string without_defaults(std::string text) {
  for (const std::string_view option : {"(channel)", "(ffn)"})
    if (const std::size_t found = text.find(option); found != std::string::npos)
      text.erase(found, option.size());
  return text;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), lowered_(lower_case(text)) {}

  Label parse() {
    label_.shaped_attention = accept_any(kShaped).has_value();
    label_.entropy_regularized = accept_any(kEntropyRegularized).has_value();
    parse_net();
    if (label_.entropy_regularized) expect(")");
    if (position_ != text_.size()) {
      note_expected("the end");
      fail();
    }
    return label_;
  }

 private:
  void parse_net() {
    expect_any(kSoftmaxes);
    if (const auto shape = accept_any(kTemperatures)) label_.temperature = *shape;
    bool plus = false;  // one that nothing follows yet
    const auto behind_plus = [&](auto parse) {
      if (plus || accept("+")) plus = !parse();
    };
    behind_plus([&] { return parse_norm(); });
    behind_plus([&] { return parse_ffn(); });
    for_each_numbered([&](const auto& part) { behind_plus([&] { return parse_numbered(part); }); });
    if (plus) fail();
    if (accept(kPruned))
      label_.num_pruned_ffns = expect_number(0, kMaxLayers, "a number of pruned FFNs");
  }

  bool parse_norm() {
    const auto norm = accept_any(kNorms);
    if (!norm) return false;
    label_.norm = *norm;
    if (*norm == Norm::kFoldableChannel) label_.norm = accept_any(kFoldableKinds).value_or(*norm);
    return true;
  }

  bool parse_ffn() {
    const auto ffn = accept_any(kFeedForwards);
    if (!ffn) return false;
    label_.ffn = *ffn;
    if (is_leaky(label_.ffn)) label_.ffn = expect_any(kLeakySlopes);
    if (is_normalized(label_.ffn))
      label_.normalized_layers = accept_any(kNormalizedLayers).value_or(NormalizedLayers::kFfn);
    return true;
  }

  template <class Part>
  bool parse_numbered(const Part& part) {
    std::vector<std::string_view> letters;
    for (const auto& word : part.words) {
      letters.push_back(word.letter);
      if (!has_number(word.letter, position_)) continue;
      ++position_;
      expected_.clear();
      label_.*part.kind = word.value;
      label_.*part.number = expect_number(2, part.largest, part.what);
      return true;
    }
    note_expected(quoted_list(letters) + " with " + std::string(part.what));
    return false;
  }

  // Other words begin with these letters, so only a digit behind one makes it a word.
  bool has_number(std::string_view letter, std::size_t at) const {
    return at + 1 < text_.size() && lowered_.substr(at, 1) == lower_case(letter) &&
           is_digit(text_[at + 1]);
  }

  bool accept(std::string_view word) {
    if (lowered_.compare(position_, word.size(), lower_case(word)) == 0) {
      position_ += word.size();
      expected_.clear();
      return true;
    }
    note_expected(quoted(word));
    return false;
  }

  template <class Words>
  auto accept_any(const Words& words) -> std::optional<decltype(words.front().value)> {
    for (const auto& word : words)
      if (accept(word.text)) return word.value;
    return std::nullopt;
  }

  void expect(std::string_view word) {
    if (!accept(word)) fail();
  }

  template <class Words>
  auto expect_any(const Words& words) -> decltype(words.front().value) {
    const auto value = accept_any(words);
    if (!value) fail();
    return *value;
  }

  std::int64_t expect_number(std::int64_t smallest, std::int64_t largest, std::string_view what) {
    std::size_t end = position_;
    std::int64_t number = 0;
    while (end < text_.size() && is_digit(text_[end]))
      number = std::min(number * 10 + (text_[end++] - '0'), largest + 1);
    if (end == position_ || number < smallest || number > largest) {
      note_expected(std::string(what) + " from " + std::to_string(smallest) + " to " +
                    std::to_string(largest));
      fail();
    }
    position_ = end;
    expected_.clear();
    return number;
  }

  // Every word tried at the present position and not found; accepting one clears the list.
  void note_expected(std::string what) {
    if (std::find(expected_.begin(), expected_.end(), what) == expected_.end())
      expected_.push_back(std::move(what));
  }

  [[noreturn]] void fail() const {
    std::string expected;
    for (std::size_t i = 0; i < expected_.size(); ++i)
      expected += (i == 0 ? "" : i + 1 == expected_.size() ? " or " : ", ") + expected_[i];
    const std::string after =
        position_ == 0 ? "" : " (after " + quoted(text_.substr(0, position_)) + ")";
    const std::string got = position_ == text_.size() ? "the end" : quoted(text_.substr(position_));
    throw std::invalid_argument("label " + quoted(text_) + ": at position " +
                                std::to_string(position_ + 1) + after + " expected " + expected +
                                ", got " + got + "; nearest valid label: " + quoted(nearest()));
  }

  // The label at the smallest edit distance among those that begin with the part understood so
  // far; among all where none does (that part may end in a useless "_i0").
  std::string nearest() const {
    constexpr std::size_t kLongest = 64;  // the longest label has 43 letters
    const std::string text = without_defaults(lowered_.substr(0, kLongest));
    const std::string understood = without_defaults(lowered_.substr(0, position_));
    // A plus may have nothing behind it.
    const std::string before = understood.substr(0, understood.find_last_not_of('+') + 1);
    std::string best;
    std::pair<int, std::size_t> best_score;
    const auto consider = [&](const Label& label) {
      const std::string candidate = print_label(label);
      const std::string lowered = lower_case(candidate);
      const int misses = !lowered.starts_with(understood) + !lowered.starts_with(before);
      const std::pair score{misses, edit_distance(text, candidate)};
      if (best.empty() || score < best_score) best = candidate, best_score = score;
    };
    for (const Label& tail : tails()) for_each_label(tail, consider);
    return best;
  }

  // Numbered parts and K as far as the text shows them, each also without.
  std::vector<Label> tails() const {
    std::vector<Label> found{{}};
    const auto each_also_with = [&](auto change) {
      for (std::size_t i = 0, size = found.size(); i < size; ++i) {
        found.push_back(found[i]);
        change(found.back());
      }
    };
    for_each_numbered([&](const auto& part) {
      if (const auto shown = shown_word(part))
        each_also_with([&](Label& label) {
          label.*part.kind = shown->first;
          label.*part.number = shown->second;
        });
    });
    if (const auto number = pruned_number())
      each_also_with([&](Label& label) { label.num_pruned_ffns = *number; });
    return found;
  }

  // Kind and number of the first word of a part, the number moved into its range.
  template <class Part>
  auto shown_word(const Part& part) const
      -> std::optional<std::pair<decltype(part.words.front().value), std::int64_t>> {
    for (std::size_t at = 1; at < text_.size(); ++at)
      for (const auto& word : part.words)
        if (text_[at - 1] == '+' && has_number(word.letter, at))
          return std::pair{word.value,
                           std::clamp<std::int64_t>(text_[at + 1] - '0', 2, part.largest)};
    return std::nullopt;
  }

  // K as far as the text shows one, with "_" before its i or without.
  std::optional<std::int64_t> pruned_number() const {
    const std::size_t found = lowered_.rfind('i');
    if (found == std::string::npos) return std::nullopt;
    std::int64_t number = 0;
    for (const char digit : lowered_.substr(found + 1)) {
      if (!is_digit(digit)) break;
      number = std::min(number * 10 + (digit - '0'), kMaxLayers);
    }
    return number;
  }

  std::string_view text_;
  std::string lowered_;
  std::size_t position_ = 0;
  std::vector<std::string> expected_;
  Label label_;
};

}  // namespace

Label parse_label(std::string_view text) { return Parser(text).parse(); }

}  // namespace aero::spec
