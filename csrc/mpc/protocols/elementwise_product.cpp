#include "csrc/mpc/protocols/elementwise_product.h"

#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {
namespace {

constexpr std::int64_t kSlots = 8192;

// Bytes of one ciphertext of one plaintext prime, measured.
struct WireBytes {
  double up;
  double down;
};
constexpr WireBytes kExact = {160951, 125030};
constexpr WireBytes kOneBitError = {162094, 126314};

WireBytes wire_bytes(const Stack& stack) {
  return stack.one_bit_product_error ? kOneBitError : kExact;
}

// Plaintext primes that carry one ring element through the Chinese remainder theorem.
double num_primes(const Stack& stack, Ring ring) {
  const double exact = ring == Ring::kZ2k64 ? 4 : 3;
  return stack.one_bit_product_error ? exact - 1 : exact;
}

// Ciphertexts are whole, however few of their slots are used.
double blocks(std::int64_t elements) {
  const std::int64_t whole = (elements + kSlots - 1) / kSlots;
  return static_cast<double>(whole);
}

// Ciphertexts of one prime by the party that encrypts them; the other one evaluates.
struct Blocks {
  double client;
  double server;
};

// arithmetic.cc, MulAA and SquareA: a vector is cut in two halves, on which the parties exchange
// roles; the second one is longer by an odd element.
struct Halves {
  double first;
  double second;
};

Halves halved_blocks(std::int64_t elements) {
  return {blocks(elements / 2), blocks(elements - elements / 2)};
}

// For each block the party that encrypts sends `up` bytes and the other one `down`.
Cost exchanged(const Blocks& blocks, double up, double down, double ciphertexts) {
  Cost cost;
  cost.sent_bytes[kClient] = blocks.client * up + blocks.server * down;
  cost.sent_bytes[kServer] = blocks.server * up + blocks.client * down;
  cost.rounds = 2;
  cost.elementwise_ciphertexts = (blocks.client + blocks.server) * ciphertexts;
  return cost;
}

// state.cc, TakeCachedBeaver: a triple costs two OLE slots per prime, which rank 0 evaluates and
// rank 1 encrypts; each party opens two words of 8 bytes.
Cost cached_triples(const Stack& stack, std::int64_t elements, Ring ring) {
  const auto [up, down] = wire_bytes(stack);
  const auto count = static_cast<double>(elements);
  Cost cost;
  cost.elementwise_ciphertexts = 2 * num_primes(stack, ring) * count / static_cast<double>(kSlots);
  cost.sent_bytes[kClient] = cost.elementwise_ciphertexts * down + 16 * count;
  cost.sent_bytes[kServer] = cost.elementwise_ciphertexts * up + 16 * count;
  cost.rounds = 1;
  return cost;
}

// SPU cuts a vector in two halves, on which the parties exchange roles, and fills up the last
// ciphertext of each. Where the cut lies is free: at a whole ciphertext it saves one. What is left
// beyond whole ciphertexts can take cached triples at the same time, as SPU does for vectors that
// are shorter than one; they cost 2 k (up + down) / 8192 + 32 bytes per element against whole
// ciphertexts for all, so the shorter rests gain. Both protocols are SPU's own; only the
// cut is ours.
template <class WholeCiphertexts>
Cost filled(const Stack& stack, std::int64_t elements, Ring ring, WholeCiphertexts whole) {
  const std::int64_t rest = elements % kSlots;
  const Cost padded = whole(blocks(elements));
  if (rest == 0) return padded;
  const Cost triples = cached_triples(stack, rest, ring);
  if (elements < kSlots) return triples.comm_bytes() < padded.comm_bytes() ? triples : padded;
  const Cost cut = with_rounds(whole(blocks(elements - rest)) + triples, 2);
  return cut.comm_bytes() < padded.comm_bytes() ? cut : padded;
}

}  // namespace

Cost private_product(const Stack& stack, std::int64_t elements, Ring ring) {
  if (const ShareProtocol* shares = share_protocol(stack))
    return shares->sharing(elements, kServer) + shares->product(elements);
  const auto [up, down] = wire_bytes(stack);
  Cost cost;
  cost.elementwise_ciphertexts = num_primes(stack, ring) * blocks(elements);
  // arithmetic.cc, MulAV: the owner of the private vector encrypts it, the other one evaluates.
  cost.sent_bytes[kServer] = cost.elementwise_ciphertexts * up;
  cost.sent_bytes[kClient] = cost.elementwise_ciphertexts * down;
  cost.rounds = 2;
  return cost;
}

Cost product(const Stack& stack, std::int64_t elements, Ring ring) {
  if (const ShareProtocol* shares = share_protocol(stack)) return shares->product(elements);
  const auto [up, down] = wire_bytes(stack);
  const double primes = num_primes(stack, ring);
  // simd_mul_prot.cc, MulShare: both factors' shares go up, one response comes down, for a half of
  // the vector each. Two OLEs send one share each, for all of it.
  const auto shared = [&, up = up, down = down](const Blocks& count) {
    return exchanged(count, primes * 2 * up, primes * down, 1.5 * primes);
  };
  const auto crossed = [&, up = up, down = down](double count) {
    return exchanged({count, count}, primes * up, primes * down, primes);
  };
  const auto whole = [&](double count) {
    return stack.mul_share ? shared({count / 2, count / 2}) : crossed(count);
  };
  if (stack.fill_ciphertexts) return filled(stack, elements, ring, whole);
  const Cost triples = cached_triples(stack, elements, ring);
  const auto [first, second] = halved_blocks(elements);
  const Cost padded = stack.mul_share ? shared({first, second}) : crossed(blocks(elements));
  // Just below its threshold SPU's triples cost more than the whole ciphertexts above it; filled up
  // with zeros a short vector can have those.
  const bool is_short = elements < (stack.mul_share ? 2 * kSlots : kSlots);
  const bool takes_triples =
      is_short && (!stack.cheapest_layouts || triples.comm_bytes() <= padded.comm_bytes());
  return takes_triples ? triples : padded;
}

Cost square(const Stack& stack, std::int64_t elements, Ring ring) {
  if (const ShareProtocol* shares = share_protocol(stack)) return shares->square(elements);
  // arithmetic.cc, SquareA: one cross term 2 x0 x1. Up to one ciphertext, and in the first half,
  // rank 0 evaluates what rank 1 encrypts, which is the direction of `private_product`.
  if (elements <= kSlots) {
    const Cost one = private_product(stack, elements, ring);
    return stack.fill_ciphertexts ? filled(stack, elements, ring, [&](double) { return one; })
                                  : one;
  }
  const auto [up, down] = wire_bytes(stack);
  const double primes = num_primes(stack, ring);
  const auto whole = [&, up = up, down = down](const Blocks& count) {
    return exchanged(count, primes * up, primes * down, primes);
  };
  if (stack.fill_ciphertexts)
    return filled(stack, elements, ring,
                  [&](double count) { return whole({count / 2, count / 2}); });
  const auto [first, second] = halved_blocks(elements);
  return whole({second, first});
}

}  // namespace aero::mpc
