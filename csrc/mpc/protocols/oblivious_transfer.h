// Comparisons, truncations and conversions by oblivious transfer: SPU `libspu/mpc/cheetah/ot`,
// `libspu/mpc/cheetah/nonlinear`, and Ferret extension from YACL `yacl/crypto/.../ferret`.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"

namespace aero::mpc {

inline constexpr std::int64_t kRingBits = 64;
inline constexpr std::int64_t kFractionBits = 18;

// x > y on `bits` bits (millionaires' problem).
Cost comparison(std::int64_t elements, std::int64_t bits = kRingBits);

// One value against several public thresholds; the digits are chosen once.
Cost batched_comparison(std::int64_t elements, std::int64_t bits, std::int64_t thresholds);

Cost equality(std::int64_t elements, std::int64_t bits);

// A message of `width` bits with a correlation known to the sender.
Cost correlated_message(std::int64_t elements, std::int64_t width, std::int64_t ring_bits);

// Drops `bits` bits; f = 18 after a product of fixed-point numbers.
Cost truncation(std::int64_t elements, std::int64_t bits = kFractionBits,
                std::int64_t ring_bits = kRingBits);

// Selects x or 0 by a shared bit.
Cost multiplexer(std::int64_t elements, std::int64_t ring_bits = kRingBits);

// Bitwise AND of words of `bits` bits.
Cost bitwise_and(std::int64_t elements, std::int64_t bits);

// A shared bit becomes an arithmetic share.
Cost bit_to_arithmetic(std::int64_t elements);

// `bits` shared bits become one arithmetic share.
Cost packed_bits_to_arithmetic(std::int64_t elements, std::int64_t bits);

// Public and Galois keys and the base OTs of every instance, once per session.
Cost session_setup(std::int64_t threads);

}  // namespace aero::mpc
