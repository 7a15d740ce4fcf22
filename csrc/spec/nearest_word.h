// "Did you mean": names of tables, and the closest of some words, for error messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace aero::spec {

// ASCII lower case; other bytes stay.
std::string lower_case(std::string_view text);

// Levenshtein distance, upper and lower case being equal. O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The first of the words with the smallest edit distance. There must be at least one.
template <class Words>
std::string_view nearest_word(std::string_view word, const Words& words) {
  std::string_view nearest = *std::begin(words);
  for (const std::string_view candidate : words)
    if (edit_distance(word, candidate) < edit_distance(word, nearest)) nearest = candidate;
  return nearest;
}

// Those of a table whose rows have a `name`.
template <class Rows>
std::vector<std::string_view> names_of(const Rows& rows) {
  std::vector<std::string_view> names;
  names.reserve(std::size(rows));
  for (const auto& row : rows) names.push_back(row.name);
  return names;
}

// Words as `"a", "b" or "c"`.
template <class Words>
std::string quoted_list(const Words& words, std::string_view conjunction = " or ") {
  std::string text;
  std::size_t index = 0;
  for (const std::string_view word : words) {
    if (index > 0) text += index + 1 == std::size(words) ? conjunction : ", ";
    text.append("\"").append(word).append("\"");
    ++index;
  }
  return text;
}

// `; did you mean "b"?`, or nothing where no word is at all like this one.
template <class Words>
std::string suggestion(std::string_view word, const Words& words) {
  const std::string_view nearest = nearest_word(word, words);
  if (2 * edit_distance(word, nearest) > word.size() + 1) return "";
  return "; did you mean \"" + std::string(nearest) + "\"?";
}

// Foreign text in quotes: at most 60 bytes of it, bytes outside printable ASCII as \xNN.
std::string quoted(std::string_view text);

}  // namespace aero::spec
