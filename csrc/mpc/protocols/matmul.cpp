#include "csrc/mpc/protocols/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {
namespace {

__extension__ using WideCount = __int128;

// `count` pieces of `size` elements along one dimension.
struct Pieces {
  std::int64_t size;
  std::int64_t count;
};

std::array<Pieces, 2> cut(std::int64_t length, std::int64_t step) {
  return {Pieces{step, length / step}, Pieces{length % step, length % step == 0 ? 0 : 1}};
}

BlockChoice block_choice(const Stack& stack) {
  return stack.cheapest_layouts ? BlockChoice::kFewestBytes : BlockChoice::kSpu;
}

// Tile sizes under SPU's memory limit: kernel/hal/ring.cc, calcMmulTilingSize (256 MiB; the stack
// names the limit). A tile repeats what its neighbours have sent. Polynomials can as well be
// encoded one after the other as they are needed, so that nothing needs a tile.
MatmulShape tile(const Stack& stack, const MatmulShape& shape) {
  const auto [m, k, n] = shape;
  const auto limit_bytes = static_cast<double>(stack.matmul_tile_bytes);
  const double share_bytes = stack.protocol == Protocol::kAby3 ? 16 : 8;  // there two words
  const double operand_bytes = share_bytes * static_cast<double>(k) * static_cast<double>(m + n);
  if (stack.cheapest_layouts || operand_bytes < limit_bytes) return shape;
  const double elements = limit_bytes / share_bytes;
  const std::int64_t outer = m + n;
  const auto ceiling = [](double value) { return static_cast<std::int64_t>(std::ceil(value)); };
  std::int64_t inner_step = k;
  std::int64_t outer_step = outer;
  if (k > 8 * outer) {
    inner_step = ceiling(elements / static_cast<double>(outer));
  } else if (outer > 8 * k) {
    outer_step = ceiling(elements / static_cast<double>(k));
  } else {
    const double side = std::sqrt(elements / (static_cast<double>(k) / static_cast<double>(outer)));
    inner_step = ceiling(elements / side);
    outer_step = ceiling(side);
  }
  const auto share = [&](std::int64_t length) {
    const auto step = static_cast<WideCount>(outer_step) * length / outer;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(step), 1, length);
  };
  return {share(m), std::clamp<std::int64_t>(inner_step, 1, k), share(n)};
}

// cheetah_dot.cc encrypts the factor with fewer polynomials, the left one on a tie; its holder
// sends `up`, the other one evaluates and sends `down`.
std::size_t encryptor(const MatmulPlan& plan) {
  return plan.num_blocks[0] <= plan.num_blocks[2] ? kClient : kServer;
}

}  // namespace

Cost plaintext_product(const Stack& stack, const MatmulShape& shape) {
  const MatmulPlan plan = plan_matmul(shape, block_choice(stack));
  const auto [b0, b1, b2] = plan.num_blocks;
  const std::size_t sender = encryptor(plan);
  Cost cost;
  cost.sent_bytes[sender] = static_cast<double>(plan.encryptions()) * kUpBytes;
  cost.sent_bytes[1 - sender] = plan.response_bytes;
  cost.rounds = 2;
  cost.ct_pt_products = static_cast<double>(b0) * static_cast<double>(b1) * static_cast<double>(b2);
  cost.plaintext_encodings = static_cast<double>(std::max(b0, b2) * b1);
  cost.automorphisms = static_cast<double>(plan.automorphisms);
  return cost;
}

std::size_t product_encryptor(const Stack& stack, const MatmulShape& shape) {
  return encryptor(plan_matmul(tile(stack, shape), block_choice(stack)));
}

Cost matmul(const Stack& stack, const MatmulShape& shape, RightFactor right) {
  check_sizes(shape);
  const MatmulShape step = tile(stack, shape);
  const ShareProtocol* shares = share_protocol(stack);
  const auto of_tile = [&](const MatmulShape& one) {
    return shares ? shares->matmul(one, right) : plaintext_product(stack, one);
  };
  Cost cost;
  // Tiles run in sequence; partial products along the inner dimension are added locally.
  for (const Pieces& rows : cut(shape.rows, step.rows))
    for (const Pieces& inner : cut(shape.inner, step.inner))
      for (const Pieces& columns : cut(shape.columns, step.columns)) {
        const double copies = static_cast<double>(rows.count) * static_cast<double>(inner.count) *
                              static_cast<double>(columns.count);
        if (copies > 0) cost += sequential(of_tile({rows.size, inner.size, columns.size}), copies);
      }
  if (shares) {
    if (right != RightFactor::kServerPrivate) return cost;
    return cost + shares->sharing(element_count({shape.inner, shape.columns}, "weight"), kServer);
  }
  if (right == RightFactor::kServerPrivate) return cost;
  // (x0 + x1)(y0 + y1): the cross terms x0 y1 and x1 y0 run concurrently with the roles exchanged
  // (arithmetic.cc, MatMulAA), so each party sends half.
  const double bytes = cost.comm_bytes();
  Cost both = parallel(cost, 2);
  both.sent_bytes = {bytes, bytes};
  return both;
}

RightFactor weight_factor(const Stack& stack) {
  return stack.private_weights ? RightFactor::kServerPrivate : RightFactor::kShared;
}

Cost weight_matmul(const Stack& stack, const MatmulShape& shape, Slices along, bool opened) {
  const auto length = along == Slices::kInner ? &MatmulShape::inner : &MatmulShape::columns;
  const auto ceiling = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t weights = element_count({shape.inner, shape.columns}, "weight");
  const std::int64_t largest = stack.largest_product > 0 ? stack.largest_product : weights;
  const std::int64_t longest = std::max<std::int64_t>(largest / (weights / shape.*length), 1);
  const std::int64_t slices = ceiling(shape.*length, longest);
  Cost cost;
  for (const Pieces& pieces : cut(shape.*length, ceiling(shape.*length, slices))) {
    if (pieces.count == 0) continue;
    MatmulShape slice = shape;
    slice.*length = pieces.size;
    // Of what SPU would cut into tiles nothing is kept.
    const bool kept = opened && 16 * slice.inner * slice.columns <= stack.matmul_tile_bytes;
    const RightFactor right = kept ? RightFactor::kOpened : weight_factor(stack);
    cost += sequential(matmul(stack, slice, right), static_cast<double>(pieces.count));
  }
  return cost;
}

}  // namespace aero::mpc
