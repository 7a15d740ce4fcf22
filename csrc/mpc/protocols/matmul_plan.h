// How a matrix product is cut into polynomials: SPU `libspu/mpc/cheetah/arith/matmat_prot.cc`
// (blocks) and `packlwes.cc` (packed responses), and a choice of this project.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace aero::mpc {

inline constexpr std::int64_t kPolynomialDegree = 8192;

// Bytes of one ciphertext on the wire, measured: up seeded (one polynomial, primes of 59, 55 and 49
// bits), down two polynomials over the primes of 59 and 55 bits.
inline constexpr double kUpBytes = 184957;
inline constexpr double kDownBytes = 254358;

// Of a response that is not packed SPU zeroes the coefficients that hold no result
// (matmat_prot.cc, ExtractLWEsInplace), in one of the two polynomials, and the serializer's
// compression removes them: two words of 8 bytes are left of each result, and 3 % of overhead.
// Measured on 1 to 4096 results, to 0.1 % of a product's bytes.
inline constexpr double kResultBytes = 16.5;

// rows x inner times inner x columns.
struct MatmulShape {
  std::int64_t rows = 0;
  std::int64_t inner = 0;
  std::int64_t columns = 0;

  auto operator<=>(const MatmulShape&) const = default;
};

// Throws std::invalid_argument where a factor or the result has more than 2^53 elements.
void check_sizes(const MatmulShape& shape);

// The cut itself.
struct MatmulPlan {
  std::array<std::int64_t, 3> block{};       // rows, inner and columns of one polynomial
  std::array<std::int64_t, 3> num_blocks{};  // of them along each dimension
  std::int64_t responses = 0;                // ciphertexts sent back
  double response_bytes = 0;                 // of all of them
  std::int64_t automorphisms = 0;            // spent on packing the responses

  // Of the factor with fewer polynomials, which travels encrypted.
  std::int64_t encryptions() const;
  double comm_bytes() const;
};

// kSpu: by the weight that SPU minimises, which is not what it sends; so a larger product can cost
// less. Of GPT-2 between 1 and 1024 tokens P V falls four times, by at most 29 % (31 to 32 tokens),
// Q K^T three times, by at most 4.1 %. Where SPU also cuts by its memory limit (matmul.h), the LM
// head falls by up to 3.4 %. The whole network falls at five lengths at most, by at most 11 %, and
// never below what kFewestBytes sends for fewer tokens.
//
// kFewestBytes: the bytes sent, over all blocks SPU chooses from and over blocks wider than the
// product, filled up with zeros. It never costs more bytes than kSpu for an uncut product, nor
// fewer for a larger one: with any one block no count falls when a dimension grows, and a block
// that fits a larger product also fits a smaller one.
enum class BlockChoice : std::uint8_t { kSpu, kFewestBytes };

// Searches the best block (a fraction of a millisecond the first time; kept per thread); checks
// the sizes.
MatmulPlan plan_matmul(const MatmulShape& shape, BlockChoice choice = BlockChoice::kSpu);

}  // namespace aero::mpc
