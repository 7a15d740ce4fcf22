// SEMI2K (two parties and a dealer), ABY3 (three parties, one of whom may be corrupt) and SecureNN
// (as ABY3, but the third holds no shares) in Z_2^64, by the source of SPU: `libspu/mpc/semi2k`,
// `libspu/mpc/aby3` and `libspu/mpc/securenn`, files arithmetic.cc, boolean.cc, conversion.cc;
// `mpc/ab_api.cc` and `mpc/utils/circuits.h` for the circuits. Every number was measured with SPU
// 0.9.5, to the byte; benchmarks/private_protocols.py measures again.
//
// A message of one party to another is a round; parties that send to each other at once share it.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {
namespace {

constexpr double kWord = 8;         // bytes of a ring element
constexpr double kHalfWord = 4;     // truncations by up to 32 bits compute the wrap in Z_2^32
constexpr double kAdderLevels = 6;  // of a Kogge-Stone adder of 64 bits

double counted(std::int64_t count) { return static_cast<double>(count); }

// Shares of bits travel in the smallest machine word that holds them.
double bytes_of_bits(std::int64_t bits) {
  const auto whole = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(bits, 8)));
  return static_cast<double>(whole) / 8;
}

// The widths of the ANDs that find the carry into the highest bit, after that of all 64: two of
// each, side by side (ab_api.cc, carry_a2b).
constexpr std::array<std::int64_t, 6> kCarryWidths{32, 16, 8, 4, 2, 1};

// Of two parties, by seeds that both have.
Cost sharing_by_seeds(std::int64_t, std::size_t) { return {}; }

// As under Cheetah: a test of each index, and a product with the whole table.
template <Cost (*kEquality)(std::int64_t), Cost (*kBitsToArithmetic)(std::int64_t, std::int64_t),
          Cost (*kMatmul)(const MatmulShape&, RightFactor)>
Cost row_by_tests(std::int64_t, std::int64_t rows, std::int64_t width) {
  return kEquality(rows) + kBitsToArithmetic(rows, 1) +
         kMatmul({1, rows, width}, RightFactor::kShared);
}

namespace semi2k {

// Both parties send `bytes` to each other at once; `dealt` come from the dealer, to one of them
// (beaver_ttp.cc: what seeds cannot make). In SPU's other mode one of the parties deals, and
// nothing is sent, but it knows the other's secrets.
Cost exchanged(std::int64_t elements, double bytes, double dealt) {
  Cost cost;
  cost.sent_bytes = {counted(elements) * bytes, counted(elements) * bytes};
  cost.dealer_bytes = counted(elements) * dealt;
  cost.rounds = 1;
  return cost;
}

// x - a and y - b are opened.
Cost product(std::int64_t elements) { return exchanged(elements, 2 * kWord, kWord); }

Cost square(std::int64_t elements) { return exchanged(elements, kWord, kWord); }

// TruncAPr2: one product of bits that the parties know, in Z_2^32.
Cost truncation(std::int64_t elements) { return exchanged(elements, kHalfWord, kHalfWord); }

Cost bitwise_and(std::int64_t elements, std::int64_t bits) {
  const double bytes = bytes_of_bits(bits);
  return exchanged(elements, 2 * bytes, bytes);
}

Cost comparison(std::int64_t elements) {
  Cost cost = bitwise_and(elements, 63);
  for (const std::int64_t bits : kCarryWidths) cost += parallel(bitwise_and(elements, bits), 2);
  return cost;
}

// eqz: x + r is opened, then an AND of all bits in six halvings of a whole word.
Cost equality(std::int64_t elements) {
  return exchanged(elements, kWord, kWord) + sequential(bitwise_and(elements, 64), 6);
}

// Each party's share as bits needs no message; the adder does.
Cost arithmetic_to_bits(std::int64_t elements) {
  return bitwise_and(elements, 64) +
         sequential(parallel(bitwise_and(elements, 64), 2), kAdderLevels);
}

// B2A_Randbit: the bits are opened under random ones, of which the dealer sends a word each.
Cost bits_to_arithmetic(std::int64_t elements, std::int64_t bits) {
  return exchanged(elements, bytes_of_bits(bits), counted(bits) * kWord);
}

// Both factors are opened under masks, a kept one once (beaver_cache.cc).
Cost matmul(const MatmulShape& shape, RightFactor right) {
  const std::int64_t columns = right == RightFactor::kOpened ? 0 : shape.columns;
  const std::int64_t factors = element_count({shape.inner, shape.rows + columns}, "matrix");
  Cost cost = exchanged(factors, kWord, 0);
  cost.dealer_bytes = counted(shape.rows) * counted(shape.columns) * kWord;
  return cost;
}

// SPU does not know that the result of an equality is one bit and converts all 64.
Cost argmax_picks(std::int64_t nodes) {
  return sequential(bits_to_arithmetic(nodes, 64), 2) + sequential(product(nodes), 2) +
         sequential(bitwise_and(nodes, 1), 3);
}

constexpr ShareProtocol kProtocol{truncation,
                                  product,
                                  square,
                                  comparison,
                                  equality,
                                  product,
                                  bitwise_and,
                                  arithmetic_to_bits,
                                  bits_to_arithmetic,
                                  matmul,
                                  sharing_by_seeds,
                                  row_by_tests<equality, bits_to_arithmetic, matmul>,
                                  argmax_picks};

}  // namespace semi2k

namespace aby3 {

// All three together send `bytes` an element; which of them sends most changes by a public coin, so
// that each sends a third on average.
Cost sent(std::int64_t elements, double bytes, double rounds) {
  Cost cost;
  cost.sent_bytes = {counted(elements) * bytes / 3, counted(elements) * bytes / 3};
  cost.helper_bytes = counted(elements) * bytes / 3;
  cost.rounds = rounds;
  return cost;
}

// Each party sends its part to the one before it.
Cost rotated(std::int64_t elements, double bytes) { return sent(elements, 3 * bytes, 1); }

Cost product(std::int64_t elements) { return rotated(elements, kWord); }

// TruncPrWithMsbKnown: three words of 32 bits for the wrap, then two of 64 to share the result.
Cost truncation(std::int64_t elements) { return sent(elements, 3 * kHalfWord + 2 * kWord, 2); }

Cost bitwise_and(std::int64_t elements, std::int64_t bits) {
  return rotated(elements, bytes_of_bits(bits));
}

Cost comparison(std::int64_t elements) {
  Cost cost = rotated(elements, kWord) + bitwise_and(elements, 63);
  for (const std::int64_t bits : kCarryWidths) cost += parallel(bitwise_and(elements, bits), 2);
  return cost;
}

// eqz: a masked word to one party, whose bits all three then AND in six halvings.
Cost equality(std::int64_t elements) {
  Cost cost = sent(elements, kWord, 1) + rotated(elements, kWord);
  for (const std::int64_t bits : kCarryWidths) cost += bitwise_and(elements, bits);
  return cost;
}

// MulA1B by two three-party oblivious transfers at once.
Cost multiplexer(std::int64_t elements) { return sent(elements, 8 * kWord, 2); }

Cost arithmetic_to_bits(std::int64_t elements) {
  return rotated(elements, kWord) + bitwise_and(elements, 64) +
         sequential(parallel(bitwise_and(elements, 64), 2), kAdderLevels);
}

// Up to eight bits by three-party oblivious transfer, three words a bit and one of the result; more
// by an adder between two rotations, and a word that is opened to one party.
Cost bits_to_arithmetic(std::int64_t elements, std::int64_t bits) {
  if (bits <= 8) return sent(elements, (3 * counted(bits) + 1) * kWord, 2);
  return arithmetic_to_bits(elements) + sent(elements, kWord, 1) + rotated(elements, kWord);
}

// A word of each element of the result and party.
Cost matmul(const MatmulShape& shape, RightFactor) {
  return product(element_count({shape.rows, shape.columns}, "matrix product"));
}

// A word to each of the others, by two messages at once.
Cost sharing(std::int64_t elements, std::size_t owner) {
  Cost cost;
  cost.sent_bytes[owner] = 2 * kWord * counted(elements);
  cost.rounds = 1;
  return cost;
}

// oram.cc: a distributed point function of ceil(log2 rows) levels picks the row without touching
// the table; of several tokens the row is shared again. The bytes are those of 23 measured sizes.
Cost table_row(std::int64_t tokens, std::int64_t rows, std::int64_t width) {
  const auto levels = static_cast<double>(std::bit_width(static_cast<std::uint64_t>(rows - 1)));
  const double columns = counted(width) * (tokens > 1 ? 6 : 3) * kWord;
  return sent(1, 588 * levels + 624 + columns, 20 + 6 * levels);
}

// The tests' results become arithmetic shares of eight bits; then products pick, and join the
// tests.
Cost argmax_picks(std::int64_t nodes) {
  return sequential(bits_to_arithmetic(nodes, 8), 2) + sequential(product(nodes), 3) +
         sequential(bitwise_and(nodes, 1), 3);
}

constexpr ShareProtocol kProtocol{truncation,         product,     product,     comparison,
                                  equality,           multiplexer, bitwise_and, arithmetic_to_bits,
                                  bits_to_arithmetic, matmul,      sharing,     table_row,
                                  argmax_picks};

}  // namespace aby3

namespace securenn {

// Bytes of an element that the client and the server send each, and those of the helper.
Cost sent(std::int64_t elements, double each, double helper, double rounds) {
  Cost cost;
  cost.sent_bytes = {counted(elements) * each, counted(elements) * each};
  cost.helper_bytes = counted(elements) * helper;
  cost.rounds = rounds;
  return cost;
}

// The helper makes a triple, of which seeds leave one word; the server waits for it before x - a
// and y - b are opened.
Cost product(std::int64_t elements) { return sent(elements, 2 * kWord, kWord, 2); }

// Three random masks are summed at the helper, who sends two words back; x + r is opened among all
// three; the helper's part of the result goes to the client.
Cost truncation(std::int64_t elements) { return sent(elements, 5 * kWord, 5 * kWord, 4); }

// Opened among all three, the helper's word of a triple before.
Cost bitwise_and(std::int64_t elements, std::int64_t bits) {
  const double bytes = bytes_of_bits(bits);
  Cost cost = sent(elements, 4 * bytes, 4 * bytes, 2);
  cost.helper_bytes += std::ceil(counted(elements) * bytes / kWord) * kWord;
  return cost;
}

// Each party's share as bits needs no message; the adders do, one of the client's and the server's
// share and one of the helper's, which is 0.
Cost arithmetic_to_bits(std::int64_t elements) {
  return sequential(
      bitwise_and(elements, 64) + sequential(parallel(bitwise_and(elements, 64), 2), kAdderLevels),
      2);
}

// Msb_a2b: the share of 2 x modulo 2^64 - 1, then the lowest bit of 2 x there. Either compares the
// 64 bits of two numbers at the helper, a word for each bit.
Cost comparison(std::int64_t elements) {
  constexpr double kBits = 64 * kWord;
  const Cost converted = sent(elements, kBits + kWord, 2 * kBits + 4 * kWord, 4);
  const Cost lowest_bit = sent(elements, kBits + 3 * kWord, 2 * kBits + 7 * kWord, 5);
  return converted + lowest_bit + arithmetic_to_bits(elements);
}

// Neither x < y nor y < x.
Cost equality(std::int64_t elements) {
  return sequential(comparison(elements), 2) + bitwise_and(elements, 64);
}

// B2A_Randbit: the helper corrects the sum of the parties' random words to bits, under which the
// bits are opened; its part of the result goes to the client.
Cost bits_to_arithmetic(std::int64_t elements, std::int64_t bits) {
  const double words = counted(bits) * kWord;
  return sent(elements, words + 2 * kWord, words + 3 * kWord, 4);
}

constexpr std::int64_t kResultBits = 64;  // Msb_a2b ends in whole words

Cost multiplexer(std::int64_t elements) {
  return bits_to_arithmetic(elements, kResultBits) + product(elements);
}

Cost matmul(const MatmulShape& shape, RightFactor) {
  const std::int64_t factors = element_count({shape.inner, shape.rows + shape.columns}, "matrix");
  Cost cost = sent(factors, kWord, 0, 2);
  cost.helper_bytes = counted(shape.rows) * counted(shape.columns) * kWord;
  return cost;
}

Cost argmax_picks(std::int64_t nodes) {
  return sequential(multiplexer(nodes), 2) + sequential(bitwise_and(nodes, 64), 3);
}

constexpr ShareProtocol kProtocol{truncation,
                                  product,
                                  product,
                                  comparison,
                                  equality,
                                  multiplexer,
                                  bitwise_and,
                                  arithmetic_to_bits,
                                  bits_to_arithmetic,
                                  matmul,
                                  sharing_by_seeds,
                                  row_by_tests<equality, bits_to_arithmetic, matmul>,
                                  argmax_picks,
                                  kResultBits};

}  // namespace securenn
}  // namespace

const ShareProtocol* share_protocol(const Stack& stack) {
  switch (stack.protocol) {
    case Protocol::kSemi2k:
      return &semi2k::kProtocol;
    case Protocol::kAby3:
      return &aby3::kProtocol;
    case Protocol::kSecureNn:
      return &securenn::kProtocol;
    case Protocol::kCheetah:
      break;
  }
  return nullptr;
}

}  // namespace aero::mpc
