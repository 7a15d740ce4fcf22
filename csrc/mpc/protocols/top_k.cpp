#include "csrc/mpc/protocols/top_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {
namespace {

constexpr double kWordBytes = 8;

std::int64_t log2_ceil(std::int64_t count) {
  return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
}

// permute.cc of each protocol. Cheetah: a Waksman network of n log n - 2^(log n) + 1 switches for
// the permutation of each party, a product of shares each (waksman_net.cc). SEMI2K: each party's
// permutation takes one message of the other, and a pair of the dealer's; a counter of the session
// goes with it, 3 bytes at first and 5 later. ABY3: four messages of a word an element.
Cost shuffle(const Stack& stack, std::int64_t elements) {
  const auto count = static_cast<double>(elements);
  Cost cost;
  switch (stack.protocol) {
    case Protocol::kSemi2k:
      cost.sent_bytes = {2 * kWordBytes * count + 5, 2 * kWordBytes * count + 5};
      cost.dealer_bytes = 2 * kWordBytes * count;
      cost.rounds = 2;
      return cost;
    case Protocol::kAby3:
      cost.sent_bytes = {4 * kWordBytes * count / 3, 4 * kWordBytes * count / 3};
      cost.helper_bytes = 4 * kWordBytes * count / 3;
      cost.rounds = 2;
      return cost;
    case Protocol::kCheetah:
    case Protocol::kSecureNn:
      break;
  }
  const std::int64_t depth = log2_ceil(elements);
  if (depth == 0) return {};
  const auto whole = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(elements)));
  const std::int64_t switches = elements * depth - whole + 1;
  const Cost one = product(stack, switches, Ring::kZ2k64);
  return sequential(with_rounds(one, one.rounds * static_cast<double>(2 * depth - 1)), 2);
}

// Bits that all parties see: words of both, of ABY3 bytes of all three.
Cost opened_bits(const Stack& stack, std::int64_t elements) {
  const auto count = static_cast<double>(elements);
  const double each = stack.protocol == Protocol::kAby3 ? count : kWordBytes * count;
  Cost cost;
  cost.sent_bytes = {each, each};
  if (stack.protocol == Protocol::kAby3) cost.helper_bytes = each;
  cost.rounds = 1;
  return cost;
}

// How often, on average over all orders, quickselect compares the first of m numbers with the
// others, in search of the `chosen` largest of `columns`: of each m.
std::vector<double> partitions(std::int64_t columns, std::int64_t chosen) {
  const auto at = [&](std::int64_t size, std::int64_t place) {
    return static_cast<std::size_t>(size * chosen + place);
  };
  std::vector<double> reached(at(columns + 1, 0), 0.0);
  reached[at(columns, chosen - 1)] = 1;
  std::vector<double> found(static_cast<std::size_t>(columns + 1), 0.0);
  for (std::int64_t size = columns; size > 1; --size)
    for (std::int64_t place = 0; place < std::min(size, chosen); ++place) {
      const double here = reached[at(size, place)];
      found[static_cast<std::size_t>(size)] += here;
      if (size == 2) continue;
      const double each = here / static_cast<double>(size);
      for (std::int64_t larger = 0; larger < size; ++larger) {
        if (larger > place) reached[at(larger, place)] += each;
        if (larger < place) reached[at(size - 1 - larger, place - larger - 1)] += each;
      }
    }
  return found;
}

// permute.cc, QuickSelectTopk: what is compared is shuffled, so that the results may be opened;
// their number is chance.
Cost quickselect(const Stack& stack, const TopKShape& shape) {
  Cost row = shuffle(stack, shape.columns);
  if (shape.places) {
    row += shuffle(stack, shape.columns);
    // Places become shares of numbers.
    if (stack.protocol == Protocol::kAby3) {
      const double each = kWordBytes * static_cast<double>(shape.columns);
      row.sent_bytes[kClient] += each;
      row.sent_bytes[kServer] += each;
      row.helper_bytes += each;
    }
  }
  const std::vector<double> times = partitions(shape.columns, shape.chosen);
  for (std::int64_t size = 2; size <= shape.columns; ++size)
    if (const double often = times[static_cast<std::size_t>(size)]; often > 0)
      row += sequential(comparison(stack, size - 1) + opened_bits(stack, size - 1), often);
  return row;
}

// permute.cc, odd_even_merge_sort, where a protocol has no shuffle: a comparison and a choice for
// each number of a pair.
Cost merge_sort(const Stack& stack, const TopKShape& shape) {
  Cost row;
  const std::int64_t n = shape.columns;
  for (std::int64_t gap = 1; gap < n; gap *= 2)
    for (std::int64_t step = gap; step > 0; step /= 2) {
      std::int64_t pairs = 0;
      for (std::int64_t j = step % gap; j + step < n; j += 2 * step)
        for (std::int64_t i = j; i < j + step && i + step < n; ++i)
          pairs += i / (2 * gap) == (i + step) / (2 * gap) ? 1 : 0;
      if (pairs > 0)
        row += comparison(stack, pairs) + result_to_arithmetic(stack, pairs) +
               parallel(product(stack, pairs, Ring::kZ2k64), shape.places ? 2 : 1);
    }
  return row;
}

}  // namespace

Cost top_k(const Stack& stack, const TopKShape& shape) {
  constexpr std::int64_t kMaxColumns = 4096;
  if (shape.chosen < 1 || shape.chosen > shape.columns || shape.columns > kMaxColumns)
    throw std::invalid_argument(
        "simulate: top_k must choose from 1 to all of at most " + std::to_string(kMaxColumns) +
        " columns, got " + std::to_string(shape.chosen) + " of " + std::to_string(shape.columns));
  const Cost row =
      stack.protocol == Protocol::kSecureNn ? merge_sort(stack, shape) : quickselect(stack, shape);
  const Cost all = sequential(row, static_cast<double>(shape.rows));
  return with_rounds(all, std::nearbyint(all.rounds));
}

}  // namespace aero::mpc
