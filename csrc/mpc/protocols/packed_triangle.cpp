#include "csrc/mpc/protocols/packed_triangle.h"

#include <algorithm>
#include <bit>

namespace aero::mpc {
namespace {

// The layout. A polynomial holds R rows of queries, d_k padded to the power of two d1 apart, with
// R = min(N / d1, T rounded up to a power of two). A plaintext polynomial holds c = N / (R d1)
// neighbouring keys. Their product has R c scores, d1 coefficients apart, and garbage between.
// Packing (packlwes.cc) joins ciphertexts pairwise: x + X^s y + phi(x - X^s y), where the
// automorphism phi negates what lies at odd multiples of s and keeps the even ones; so each step
// halves the distance between wanted coefficients and wipes out what stood between.
//
// Key j of a diagonal block is seen by its last R - j rows only, and SPU sends R scores all the
// same. Let the rows of a block stand in an order in which, for every power of two u, the last u
// rows are those at multiples of R / u (bit-reversed; each party permutes its own share of the
// queries). If u is R - j rounded up to a power of two, the live scores then are R / u times
// farther apart than d1, and the same tree can begin log2(R / u) steps earlier: the first steps
// wipe out the dead scores and put other keys' live ones in their place. So key j fills u
// coefficients for each of the c keys it shares a plaintext with, instead of R. Sizes are powers of
// two, so responses fill up without gaps, across row blocks and across heads. Keys beyond the block
// are seen by no row of it. The values, the security and the noise (as many automorphisms per path
// as steps) are those of packing itself.
struct Layout {
  std::int64_t inner = 0;     // d1
  std::int64_t rows = 0;      // R
  std::int64_t together = 0;  // c

  explicit Layout(const MatmulShape& shape) {
    const auto power = [](std::int64_t value) {
      return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value)));
    };
    inner = std::min(power(shape.inner), kPolynomialDegree);
    rows = std::min(kPolynomialDegree / inner, power(shape.rows));
    together = kPolynomialDegree / (rows * inner);
  }

  std::int64_t rounded(std::int64_t live) const {
    const auto up = std::bit_ceil(static_cast<std::uint64_t>(live));
    return std::min(rows, static_cast<std::int64_t>(up));
  }
};

struct Fill {
  std::int64_t slots = 0;     // coefficients of responses
  std::int64_t products = 0;  // pairs of a row block and a plaintext that any row of it sees
};

// Row block by row block; keys before the block are seen by all of its rows.
Fill fill_of(const Layout& layout, std::int64_t length) {
  Fill fill;
  for (std::int64_t first = 0; first < length; first += layout.rows) {
    const std::int64_t last = std::min(first + layout.rows, length);
    // The rows that are there stand at the block's end, those that are missing see nothing. With
    // more than one block a plaintext holds one key.
    fill.slots += first * layout.rounded(last - first);
    fill.products += first;
    for (std::int64_t key = first; key < last; key += layout.together) {
      fill.slots += layout.together * layout.rounded(last - key);
      ++fill.products;
    }
  }
  return fill;
}

}  // namespace

std::int64_t triangle_slots(const MatmulShape& shape) {
  return fill_of(Layout(shape), shape.rows).slots;
}

Cost packed_triangles(const MatmulShape& shape, std::int64_t heads) {
  const Layout layout(shape);
  const Fill fill = fill_of(layout, shape.rows);
  const std::int64_t row_blocks = ceil_div(shape.rows, layout.rows);
  const std::int64_t inner_blocks = ceil_div(shape.inner, layout.inner);
  const std::int64_t key_blocks = ceil_div(shape.columns, layout.together);
  const std::int64_t slots = element_count({heads, fill.slots}, "scores");
  const std::int64_t responses = ceil_div(slots, kPolynomialDegree);
  const auto count = static_cast<double>(heads);
  const auto inner = static_cast<double>(inner_blocks);
  // Two cross terms with the roles exchanged, as in `matmul`: each party sends half.
  const double bytes = count * static_cast<double>(row_blocks) * inner * kUpBytes +
                       static_cast<double>(responses) * kDownBytes;
  Cost cost;
  cost.sent_bytes = {bytes, bytes};
  cost.rounds = 2;
  cost.ct_pt_products = 2 * count * inner * static_cast<double>(fill.products);
  cost.plaintext_encodings = 2 * count * inner * static_cast<double>(key_blocks);
  // A step joins two ciphertexts; a product that stays alone takes its steps with zeros.
  cost.automorphisms = 2 * count * static_cast<double>(fill.products);
  return cost;
}

}  // namespace aero::mpc
