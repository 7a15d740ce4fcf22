#include "csrc/mpc/protocols/oblivious_transfer.h"

#include <algorithm>
#include <bit>

namespace aero::mpc {
namespace {

// One Ferret extension sends 1280 trees of depth 13 (16-byte nodes) and yields 10,485,760 OTs, of
// which 452,000 + 1280 * 13 seed the next one: 0.213 bit per OT.
constexpr double kExtensionBytes = 1280.0 * 13.0 * 16.0;
constexpr double kFerretBytesPerOt = kExtensionBytes / (10485760.0 - 452000.0 - 1280.0 * 13.0);

// A tree digit has 4 bits: 1-of-16 OTs at the leaves (compare_prot.h, compare_radix 4).
constexpr std::int64_t kDigitBits = 4;

constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

// Messages of one element.
struct Messages {
  double sender_bits = 0;
  double chooser_bits = 0;
  double ots = 0;
  double flights = 0;
  double reversed_ots = 0;  // those of `ots` in which the parties have exchanged roles
};

Messages symmetric(double bits, double ots, double flights) {
  return {bits / 2, bits / 2, ots, flights, ots / 2};
}

Messages operator+(const Messages& a, const Messages& b) {
  return {a.sender_bits + b.sender_bits, a.chooser_bits + b.chooser_bits, a.ots + b.ots,
          a.flights + b.flights, a.reversed_ots + b.reversed_ots};
}

// SPU's rank 0 is the sender of every one-sided OT (`Rank() == 0` in compare_prot.cc,
// equal_prot.cc, truncate_prot.cc and basic_ot_prot.cc). Each direction has a Ferret of its own,
// whose extensions the sender of its OTs sends (measured between two parties, 0.266 MB each).
Cost priced(std::int64_t elements, const Messages& messages) {
  const auto count = static_cast<double>(elements);
  Cost cost;
  cost.ots = count * messages.ots;
  const double reversed = count * messages.reversed_ots;
  cost.sent_bytes[kClient] =
      count * messages.sender_bits / 8 + (cost.ots - reversed) * kFerretBytesPerOt;
  cost.sent_bytes[kServer] = count * messages.chooser_bits / 8 + reversed * kFerretBytesPerOt;
  cost.flights = messages.flights;
  return cost;
}

// The ANDs that join `digits` comparison and equality bits into one comparison bit
// (compare_prot.cc, TraversalAND). A plain AND opens 4 bits, a correlated pair 6; 2 OTs each.
Messages and_tree(std::int64_t digits) {
  Messages total;
  while (digits > 1) {
    const auto full = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(digits)));
    for (std::int64_t width = full; width > 1; width /= 2) {
      const std::int64_t pairs = width / 2;
      const auto correlated = static_cast<double>(pairs - 1);
      total = total + symmetric(4 + 6 * correlated, 2 + 2 * correlated, width == 2 ? 2 : 5);
    }
    digits = digits - full + 1;  // the joined digits are the first digit of what remains
  }
  return total;
}

}  // namespace

Cost batched_comparison(std::int64_t elements, std::int64_t bits, std::int64_t thresholds) {
  const std::int64_t digits = ceil_div(bits, kDigitBits);
  const auto leaves = static_cast<double>(digits);
  const auto copies = static_cast<double>(thresholds);
  const Messages tree = and_tree(digits);
  // A leaf is a 1-of-16 OT of 2-bit messages (32 bits) with a 4-bit choice: 4 random OTs.
  const Messages leaf = {32 * leaves * copies, 4 * leaves, 4 * leaves, 2, 0};
  return priced(elements, leaf + symmetric((tree.sender_bits + tree.chooser_bits) * copies,
                                           tree.ots * copies, tree.flights));
}

Cost comparison(std::int64_t elements, std::int64_t bits) {
  return batched_comparison(elements, bits, 1);
}

Cost equality(std::int64_t elements, std::int64_t bits) {
  // equal_prot.cc: leaves carry one bit each (16 + 4 bits), then a balanced tree of plain ANDs.
  const std::int64_t digits = ceil_div(bits, kDigitBits);
  const auto leaves = static_cast<double>(digits);
  const auto depth =  // ceil(log2 digits)
      static_cast<double>(std::bit_width(static_cast<std::uint64_t>(digits - 1)));
  return priced(elements, Messages{16 * leaves, 4 * leaves, 4 * leaves, 2, 0} +
                              symmetric(4 * (leaves - 1), 2 * (leaves - 1), 2 * depth));
}

Cost correlated_message(std::int64_t elements, std::int64_t width, std::int64_t ring_bits) {
  // ferret.cc packs messages narrower than a ring word into eighths of the word; the choice is one
  // bit.
  const std::int64_t packed =
      width < ring_bits ? ceil_div(8 * width, ring_bits) * ring_bits / 8 : width;
  return priced(elements, {static_cast<double>(packed), 1, 1, 2, 0});
}

Cost truncation(std::int64_t elements, std::int64_t bits, std::int64_t ring_bits) {
  // truncate_prot.cc with the heuristic for known small values: only the wrap of the low bits.
  return correlated_message(elements, bits, ring_bits);
}

Cost multiplexer(std::int64_t elements, std::int64_t ring_bits) {
  // basic_ot_prot.cc, Multiplexer: one correlated OT in each direction, one after the other.
  return priced(elements, symmetric(2.0 * static_cast<double>(ring_bits + 1), 2, 4));
}

Cost bitwise_and(std::int64_t elements, std::int64_t bits) {
  // Two random OTs make a triple per bit; x ^ a and y ^ b are opened by both.
  const auto width = static_cast<double>(bits);
  return priced(elements, symmetric(4 * width, 2 * width, 2));
}

Cost bit_to_arithmetic(std::int64_t elements) {
  return correlated_message(elements, kRingBits, kRingBits);
}

Cost packed_bits_to_arithmetic(std::int64_t elements, std::int64_t bits) {
  // basic_ot_prot.cc, PackedB2A: bit i needs only 64 - i bits, in whole bytes.
  double sender_bits = 0;
  for (std::int64_t i = 0; i < bits; ++i) {
    sender_bits += 8.0 * static_cast<double>(ceil_div(kRingBits - i, 8));
  }
  const auto width = static_cast<double>(bits);
  return priced(elements, {sender_bits, width, width, 3, 0});
}

Cost session_setup(std::int64_t threads) {
  // Measured: 1,206,600 bytes per OT instance, 19.75e6 bytes of keys. Both parties send as much,
  // and rank 0 each instance's first extension besides, at its first OTs.
  constexpr std::int64_t kMaxInstances = 48;
  constexpr double kInstanceBytes = 1206600;
  constexpr double kKeyBytes = 19.75e6;
  const auto instances = static_cast<double>(std::min(threads, kMaxInstances));
  const double both = instances * (kInstanceBytes - kExtensionBytes) + kKeyBytes;
  Cost cost;
  cost.sent_bytes = {both / 2 + instances * kExtensionBytes, both / 2};
  return cost;
}

}  // namespace aero::mpc
