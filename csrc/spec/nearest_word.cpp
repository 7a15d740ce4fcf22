#include "csrc/spec/nearest_word.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace aero::spec {

std::string lower_case(std::string_view text) {
  std::string lowered(text);
  for (char& letter : lowered)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return lowered;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::string x = lower_case(a);
  const std::string y = lower_case(b);
  std::vector<std::size_t> row(y.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= x.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= y.size(); ++j) {
      const std::size_t substituted = diagonal + (x[i - 1] == y[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string result = "\"";
  for (const char letter : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned>(static_cast<unsigned char>(letter));
    if (byte >= 0x20 && byte < 0x7f)
      result += letter;
    else
      result.append("\\x").append({kHexDigits[byte / 16], kHexDigits[byte % 16]});
  }
  return result + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace aero::spec
