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

// Two halves with the roles exchanged (arithmetic.cc): each party sends half.
Cost shared_evenly(double bytes, double flights, double ciphertexts) {
  Cost cost;
  cost.sent_bytes = {bytes / 2, bytes / 2};
  cost.flights = flights;
  cost.elementwise_ciphertexts = ciphertexts;
  return cost;
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
  // cheetah_mul.cc, TakeCachedBeaver: a triple costs two OLE slots per prime, 32 bytes open it.
  if (elements < (stack.mul_share ? 2 * kSlots : kSlots)) {
    const auto count = static_cast<double>(elements);
    const double ciphertexts = 2 * primes * count / static_cast<double>(kSlots);
    return shared_evenly(ciphertexts * (up + down) + 32 * count, 1, ciphertexts);
  }
  if (stack.mul_share) {
    // simd_mul_prot.cc, MulShare: both factors' shares go up, one response comes down.
    const double ciphertexts = primes * (blocks(elements / 2) + blocks(elements - elements / 2));
    return shared_evenly(ciphertexts * (2 * up + down), 2, 1.5 * ciphertexts);
  }
  const double ciphertexts = 2 * primes * blocks(elements);
  return shared_evenly(ciphertexts * (up + down), 2, ciphertexts);
}

Cost square(const Stack& stack, std::int64_t elements, Ring ring) {
  // arithmetic.cc, SquareA: one cross term 2 x0 x1. Below one ciphertext rank 0 evaluates what
  // rank 1 encrypts, which is the direction of `private_product`.
  if (elements <= kSlots) {
    return private_product(stack, elements, ring);
  }
  const auto [up, down] = wire_bytes(stack);
  const double ciphertexts =
      num_primes(stack, ring) * (blocks(elements / 2) + blocks(elements - elements / 2));
  return shared_evenly(ciphertexts * (up + down), 2, ciphertexts);
}

}  // namespace aero::mpc
