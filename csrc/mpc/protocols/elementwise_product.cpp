#include "csrc/mpc/protocols/elementwise_product.h"

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

// Of two halves, on which the parties exchange roles.
double halved_blocks(std::int64_t elements) {
  return blocks(elements / 2) + blocks(elements - elements / 2);
}

// Two halves with the roles exchanged (arithmetic.cc): each party sends half.
Cost shared_evenly(double bytes, double flights, double ciphertexts) {
  Cost cost;
  cost.sent_bytes = {bytes / 2, bytes / 2};
  cost.flights = flights;
  cost.elementwise_ciphertexts = ciphertexts;
  return cost;
}

// cheetah_mul.cc, TakeCachedBeaver: a triple costs two OLE slots per prime, 32 bytes open it.
Cost cached_triples(const Stack& stack, std::int64_t elements, Ring ring) {
  const auto [up, down] = wire_bytes(stack);
  const auto count = static_cast<double>(elements);
  const double ciphertexts = 2 * num_primes(stack, ring) * count / static_cast<double>(kSlots);
  return shared_evenly(ciphertexts * (up + down) + 32 * count, 1, ciphertexts);
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
  const Cost cut = with_flights(whole(blocks(elements - rest)) + triples, 2);
  return cut.comm_bytes() < padded.comm_bytes() ? cut : padded;
}

}  // namespace

Cost private_product(const Stack& stack, std::int64_t elements, Ring ring) {
  const auto [up, down] = wire_bytes(stack);
  Cost cost;
  cost.elementwise_ciphertexts = num_primes(stack, ring) * blocks(elements);
  // arithmetic.cc, MulAV: the owner of the private vector encrypts it, the other one evaluates.
  cost.sent_bytes[kServer] = cost.elementwise_ciphertexts * up;
  cost.sent_bytes[kClient] = cost.elementwise_ciphertexts * down;
  cost.flights = 2;
  return cost;
}

Cost product(const Stack& stack, std::int64_t elements, Ring ring) {
  const auto [up, down] = wire_bytes(stack);
  const double primes = num_primes(stack, ring);
  const auto whole = [&, up = up, down = down](double count) {
    // simd_mul_prot.cc, MulShare: both factors' shares go up, one response comes down.
    if (stack.mul_share)
      return shared_evenly(primes * count * (2 * up + down), 2, 1.5 * primes * count);
    return shared_evenly(2 * primes * count * (up + down), 2, 2 * primes * count);
  };
  if (stack.fill_ciphertexts) return filled(stack, elements, ring, whole);
  const Cost triples = cached_triples(stack, elements, ring);
  const Cost padded = whole(stack.mul_share ? halved_blocks(elements) : blocks(elements));
  // Just below its threshold SPU's triples cost more than the whole ciphertexts above it; filled up
  // with zeros a short vector can have those.
  const bool is_short = elements < (stack.mul_share ? 2 * kSlots : kSlots);
  const bool takes_triples =
      is_short && (!stack.cheapest_layouts || triples.comm_bytes() <= padded.comm_bytes());
  return takes_triples ? triples : padded;
}

Cost square(const Stack& stack, std::int64_t elements, Ring ring) {
  // arithmetic.cc, SquareA: one cross term 2 x0 x1. Below one ciphertext rank 0 evaluates what
  // rank 1 encrypts, which is the direction of `private_product`.
  if (elements <= kSlots) {
    const Cost one = private_product(stack, elements, ring);
    return stack.fill_ciphertexts ? filled(stack, elements, ring, [&](double) { return one; })
                                  : one;
  }
  const auto [up, down] = wire_bytes(stack);
  const auto whole = [&, up = up, down = down](double count) {
    const double ciphertexts = num_primes(stack, ring) * count;
    return shared_evenly(ciphertexts * (up + down), 2, ciphertexts);
  };
  if (stack.fill_ciphertexts) return filled(stack, elements, ring, whole);
  return whole(halved_blocks(elements));
}

}  // namespace aero::mpc
