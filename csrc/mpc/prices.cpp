#include "csrc/mpc/prices.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "csrc/spec/fields.h"
#include "csrc/spec/nearest_word.h"

namespace aero::mpc {
namespace {

// Beyond these a number is a typing error; they keep every sum below 2^53 for usual networks, and
// larger sums are errors of their own.
constexpr double kMaxFactor = 1000;
constexpr double kMaxBytes = 1e12;
constexpr double kMaxRounds = 1e6;

constexpr std::array<PriceField, 9> kFields{
    PriceField{"bytes_factor", &Price::bytes_factor, kMaxFactor},
    PriceField{"rounds_factor", &Price::rounds_factor, kMaxFactor},
    PriceField{"bytes_per_call", &Price::bytes_per_call, kMaxBytes},
    PriceField{"bytes_per_row", &Price::bytes_per_row, kMaxBytes},
    PriceField{"bytes_per_input", &Price::bytes_per_input, kMaxBytes},
    PriceField{"bytes_per_output", &Price::bytes_per_output, kMaxBytes},
    PriceField{"rounds", &Price::rounds, kMaxRounds},
    PriceField{"rounds_per_level", &Price::rounds_per_level, kMaxRounds},
    PriceField{"client_share", &Price::client_share, 1},
};
constexpr std::size_t kNumFactors = 2;  // the first ones of kFields

[[noreturn]] void fail(const PriceEntry& entry, const std::string& text) {
  throw std::invalid_argument("stack description: prices." + std::string(entry.operation) + text);
}

std::size_t operation_index(const PriceEntry& entry) {
  const auto found = std::find(kQuotableNames.begin(), kQuotableNames.end(), entry.operation);
  if (found == kQuotableNames.end())
    throw std::invalid_argument("stack description: prices has no operation " +
                                spec::quoted(entry.operation) + "; did you mean " +
                                spec::quoted(spec::nearest_word(entry.operation, kQuotableNames)) +
                                "?");
  return static_cast<std::size_t>(found - kQuotableNames.begin());
}

std::size_t field_index(const PriceEntry& entry) {
  const auto names = spec::names_of(kFields);
  const auto found = std::find(names.begin(), names.end(), entry.field);
  if (found == names.end())
    fail(entry, " has no field " + spec::quoted(entry.field) + "; did you mean " +
                    spec::quoted(spec::nearest_word(entry.field, names)) + "?");
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

const std::array<PriceField, 9>& price_fields() { return kFields; }

Prices with_prices(Prices prices, const std::vector<PriceEntry>& entries) {
  std::array<bool, kNumQuotables> has_factor{};
  for (const PriceEntry& entry : entries) {
    const std::size_t operation = operation_index(entry);
    const std::size_t index = field_index(entry);
    const PriceField& field = kFields[index];
    if (!(entry.value >= 0 && entry.value <= field.largest))
      fail(entry, "." + std::string(field.name) + " must be a number from 0 to " +
                      spec::shown(field.largest) + ", got " + spec::shown(entry.value));
    (index < kNumFactors ? has_factor[operation] : prices[operation].linear) = true;
    if (has_factor[operation] && prices[operation].linear)
      fail(entry,
           " must have either bytes_factor and rounds_factor, which change the derived cost, or "
           "prices of its own, got both");
    prices[operation].*field.member = entry.value;
  }
  return prices;
}

}  // namespace aero::mpc
