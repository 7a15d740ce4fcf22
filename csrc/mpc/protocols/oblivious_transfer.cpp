#include "csrc/mpc/protocols/oblivious_transfer.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace aero::mpc {
namespace {

// One Ferret extension sends 1280 trees of depth 13 (16-byte nodes) and yields 10,485,760 OTs, of
// which 452,000 + 1280 * 13 seed the next one: 0.213 bit per OT.
constexpr double kExtensionBytes = 1280.0 * 13.0 * 16.0;
constexpr double kFerretBytesPerOt = kExtensionBytes / (10485760.0 - 452000.0 - 1280.0 * 13.0);

// A tree digit has 4 bits: 1-of-16 OTs at the leaves (compare_prot.h, compare_radix 4).
constexpr std::int64_t kDigitBits = 4;

// Messages are filled up: choices to blocks of a bit set (yacl_ote_adapter.cc, recv_cot), opened
// bits to ring words (ot_util.cc, OpenShare), correlated messages to ring words after every eighth
// (ferret.cc, kOTBatchSize). Nobody sees that of many elements; of few it is nearly all that is
// sent. Above 2,048 elements more threads cut a vector and fill up the messages of each part,
// which is not counted.
constexpr double kChoiceBlockBits = 128;
constexpr std::int64_t kCorrelatedBatch = 8;

double filled_bytes(double bits, double unit_bits) {
  return std::ceil(bits / unit_bits) * (unit_bits / 8);
}

double choice_bytes(double ots) { return filled_bytes(ots, kChoiceBlockBits); }

double correlated_bytes(double elements, double width, double ring_bits) {
  constexpr double kBatch = kCorrelatedBatch;
  const double batches = std::floor(elements / kBatch);
  return batches * filled_bytes(kBatch * width, ring_bits) +
         filled_bytes((elements - batches * kBatch) * width, ring_bits);
}

// Messages of one call.
struct Messages {
  double sender_bytes = 0;
  double chooser_bytes = 0;
  double ots = 0;
  double rounds = 0;
  double reversed_ots = 0;  // those of `ots` in which the parties have exchanged roles
};

Messages operator+(const Messages& a, const Messages& b) {
  return {a.sender_bytes + b.sender_bytes, a.chooser_bytes + b.chooser_bytes, a.ots + b.ots,
          a.rounds + b.rounds, a.reversed_ots + b.reversed_ots};
}

// Both parties send as much, and are senders of as many OTs.
Messages symmetric(double bytes_each, double ots, double rounds) {
  return {bytes_each, bytes_each, ots, rounds, ots / 2};
}

// SPU's rank 0 is the sender of every one-sided OT (`Rank() == 0` in compare_prot.cc,
// equal_prot.cc, truncate_prot.cc and basic_ot_prot.cc). Each direction has a Ferret of its own,
// whose extensions the sender of its OTs sends (measured between two parties, 0.266 MB each).
Cost priced(const Messages& messages) {
  Cost cost;
  cost.ots = messages.ots;
  cost.sent_bytes[kClient] =
      messages.sender_bytes + (messages.ots - messages.reversed_ots) * kFerretBytesPerOt;
  cost.sent_bytes[kServer] = messages.chooser_bytes + messages.reversed_ots * kFerretBytesPerOt;
  cost.rounds = messages.rounds;
  return cost;
}

// Two random OTs make a triple per bit; x ^ a and y ^ b are opened.
Messages and_of_bits(double bits) {
  return symmetric(2 * filled_bytes(bits, kRingBits), 2 * bits, 2);
}

// One bit and two others: x ^ a, y0 ^ b0 and y1 ^ b1 are opened.
Messages correlated_and(double pairs) {
  return symmetric(3 * filled_bytes(pairs, kRingBits), 2 * pairs, 3);
}

// The ANDs that join `digits` comparison and equality bits into one comparison bit
// (compare_prot.cc, TraversalAND).
Messages and_tree(double elements, std::int64_t digits) {
  Messages total;
  while (digits > 1) {
    const auto full = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(digits)));
    for (std::int64_t width = full; width > 1; width /= 2) {
      total = total + and_of_bits(elements);
      const std::int64_t pairs = width / 2;
      if (pairs > 1) total = total + correlated_and(elements * static_cast<double>(pairs - 1));
    }
    digits = digits - full + 1;  // the joined digits are the first digit of what remains
  }
  return total;
}

}  // namespace

Cost batched_comparison(std::int64_t elements, std::int64_t bits, std::int64_t thresholds) {
  const std::int64_t digits = ceil_div(bits, kDigitBits);
  const auto count = static_cast<double>(elements);
  const auto copies = static_cast<double>(thresholds);
  const double leaves = count * static_cast<double>(digits);
  // A leaf is a 1-of-16 OT of 2-bit messages (4 bytes) with a 4-bit choice: 4 random OTs.
  const Messages leaf = {4 * leaves * copies, choice_bytes(4 * leaves), 4 * leaves, 2, 0};
  return priced(leaf + and_tree(count * copies, digits));
}

Cost comparison(std::int64_t elements, std::int64_t bits) {
  return batched_comparison(elements, bits, 1);
}

Cost equality(std::int64_t elements, std::int64_t bits) {
  // equal_prot.cc: leaves carry one bit each (2 bytes), then a balanced tree of plain ANDs.
  const auto count = static_cast<double>(elements);
  std::int64_t digits = ceil_div(bits, kDigitBits);
  const double leaves = count * static_cast<double>(digits);
  Messages total = {2 * leaves, choice_bytes(4 * leaves), 4 * leaves, 2, 0};
  for (; digits > 1; digits = ceil_div(digits, 2)) {
    const std::int64_t pairs = digits / 2;
    total = total + and_of_bits(count * static_cast<double>(pairs));
  }
  return priced(total);
}

Cost correlated_message(std::int64_t elements, std::int64_t width, std::int64_t ring_bits) {
  const auto count = static_cast<double>(elements);
  return priced(
      {correlated_bytes(count, static_cast<double>(width), static_cast<double>(ring_bits)),
       choice_bytes(count), count, 2, 0});
}

Cost truncation(std::int64_t elements, std::int64_t bits, std::int64_t ring_bits) {
  // truncate_prot.cc with the heuristic for known small values: only the wrap of the low bits.
  return correlated_message(elements, bits, ring_bits);
}

Cost multiplexer(std::int64_t elements, std::int64_t ring_bits) {
  // basic_ot_prot.cc, Multiplexer: one correlated OT in each direction, one after the other.
  const auto count = static_cast<double>(elements);
  const auto width = static_cast<double>(ring_bits);
  return priced(
      symmetric(correlated_bytes(count, width, width) + choice_bytes(count), 2 * count, 4));
}

Cost bitwise_and(std::int64_t elements, std::int64_t bits) {
  return priced(and_of_bits(static_cast<double>(elements) * static_cast<double>(bits)));
}

Cost bit_to_arithmetic(std::int64_t elements) {
  return correlated_message(elements, kRingBits, kRingBits);
}

Cost packed_bits_to_arithmetic(std::int64_t elements, std::int64_t bits) {
  // basic_ot_prot.cc, PackedB2A: bit i of all elements, then bit i + 1; bit i needs only 64 - i
  // bits, and a batch as many for all of it as for its first message.
  const std::int64_t ots = elements * bits;
  double sender_bytes = 0;
  std::int64_t batch = 0;
  for (std::int64_t i = 0; i < bits; ++i) {
    const std::int64_t next = ceil_div((i + 1) * elements, kCorrelatedBatch);
    const std::int64_t messages = std::min(next * kCorrelatedBatch, ots) - batch * kCorrelatedBatch;
    if (next > batch)
      sender_bytes += correlated_bytes(static_cast<double>(messages),
                                       static_cast<double>(kRingBits - i), kRingBits);
    batch = next;
  }
  const auto count = static_cast<double>(ots);
  return priced({sender_bytes, choice_bytes(count), count, 3, 0});
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
