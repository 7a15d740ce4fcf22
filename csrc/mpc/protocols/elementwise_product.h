// Products element by element on packed RLWE slots: SPU `libspu/mpc/cheetah/arith/cheetah_mul.cc`,
// `simd_mul_prot.cc`, and `arithmetic.cc` for the roles of the parties.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

enum class Ring : std::uint8_t { kZ2k32, kZ2k64 };

// Shares times a vector that the server knows.
Cost private_product(const Stack& stack, std::int64_t elements, Ring ring = Ring::kZ2k64);

// Shares times shares. Short vectors use cached Beaver triples; the cost of those is the average
// over many runs. SPU's threshold between the two, 8192 elements (16384 with MulShare), lies above
// the point where whole ciphertexts are cheaper: there the cost falls by 32 x 8192 bytes (with
// MulShare by 32 x 16384 and two responses per prime), and nowhere else. `cheapest_layouts` takes
// the cheaper one.
Cost product(const Stack& stack, std::int64_t elements, Ring ring = Ring::kZ2k64);

// Shares squared. Only exp, tanh and reciprocal square; `x * x` in a model is a product.
Cost square(const Stack& stack, std::int64_t elements, Ring ring = Ring::kZ2k64);

}  // namespace aero::mpc
