// Matrix products under RLWE encryption: SPU `libspu/mpc/cheetah/arith/cheetah_dot.cc`,
// `matmat_prot.cc` (blocks) and `packlwes.cc` (packed responses).
#pragma once

#include <array>
#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

inline constexpr std::int64_t kPolynomialDegree = 8192;

// Bytes of one ciphertext on the wire, measured: up seeded (one polynomial, primes of 59, 55 and 49
// bits), down two polynomials over the primes of 59 and 55 bits.
inline constexpr double kUpBytes = 184957;
inline constexpr double kDownBytes = 254358;

// rows x inner times inner x columns.
struct MatmulShape {
  std::int64_t rows = 0;
  std::int64_t inner = 0;
  std::int64_t columns = 0;

  auto operator<=>(const MatmulShape&) const = default;
};

// How one product is cut into ciphertexts.
struct MatmulPlan {
  std::array<std::int64_t, 3> block{};       // rows, inner and columns of one polynomial
  std::array<std::int64_t, 3> num_blocks{};  // of them along each dimension
  std::int64_t responses = 0;                // ciphertexts sent back
  std::int64_t automorphisms = 0;            // spent on packing the responses
};

// Searches the cheapest block (a fraction of a millisecond the first time; kept per thread).
MatmulPlan plan_matmul(const MatmulShape& shape);

// Left factor known to the client, right factor to the server: one plaintext x ciphertext product.
Cost plaintext_product(const MatmulShape& shape);

// Which party's factor travels encrypted in the first tile of such a product, which stands for all;
// the other party evaluates.
std::size_t product_encryptor(const Stack& stack, const MatmulShape& shape);

enum class RightFactor : std::uint8_t { kShared, kServerPrivate };

// Left factor secret-shared, tiled by the stack's memory limit; without the truncation.
Cost matmul(const Stack& stack, const MatmulShape& shape, RightFactor right);

// A weight is private to the server or secret-shared, as the stack says.
RightFactor weight_factor(const Stack& stack);

}  // namespace aero::mpc
