#include "csrc/mpc/protocols/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

namespace aero::mpc {
namespace {

__extension__ using WideCount = __int128;

constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

std::array<std::int64_t, 3> count_blocks(const MatmulShape& shape,
                                         const std::array<std::int64_t, 3>& block) {
  return {ceil_div(shape.rows, block[0]), ceil_div(shape.inner, block[1]),
          ceil_div(shape.columns, block[2])};
}

// matmat_prot.cc weighs ciphertexts sent with 1000, the packing work of the responses with its
// number of automorphisms, ciphertext products with a tenth. The last of equal minima wins.
std::array<std::int64_t, 3> search_block(const MatmulShape& shape, bool pack_responses) {
  std::array<std::int64_t, 3> best{};
  double best_weight = -1;
  const std::int64_t packed_outputs = ceil_div(shape.rows * shape.columns, kPolynomialDegree);
  for (std::int64_t d0 = 1; d0 <= std::min(kPolynomialDegree, shape.rows); ++d0) {
    const std::int64_t room = kPolynomialDegree / d0;
    for (std::int64_t d1 = 1; d1 <= std::min(shape.inner, room);
         d1 = pack_responses ? 2 * d1 : d1 + 1) {
      const std::array<std::int64_t, 3> block = {d0, d1, std::min(shape.columns, room / d1)};
      const auto [b0, b1, b2] = count_blocks(shape, block);
      const double weight =
          1000.0 * static_cast<double>(std::min(b0, b2) * b1 + ceil_div(b0 * b2, d1)) +
          (pack_responses ? static_cast<double>(packed_outputs * d1) : 0.0) +
          static_cast<double>(b0) * static_cast<double>(b1) * static_cast<double>(b2) / 10.0;
      if (best_weight < 0 || weight <= best_weight) {
        best_weight = weight;
        best = block;
      }
    }
  }
  return best;
}

void check_sizes(const MatmulShape& shape) {
  for (const auto& [a, b] : {std::pair{shape.rows, shape.inner},
                             {shape.inner, shape.columns},
                             {shape.rows, shape.columns}})
    element_count({a, b}, "matrix product");
}

MatmulPlan search_plan(const MatmulShape& shape) {
  check_sizes(shape);
  MatmulPlan plan;
  plan.block = search_block(shape, true);
  plan.num_blocks = count_blocks(shape, plan.block);
  std::int64_t outputs = plan.num_blocks[0] * plan.num_blocks[2];
  if (outputs <= 1) {
    // One response needs no packing: search again for the product alone.
    plan.block = search_block(shape, false);
    plan.num_blocks = count_blocks(shape, plan.block);
    plan.responses = plan.num_blocks[0] * plan.num_blocks[2];
    return plan;
  }
  const std::int64_t elements = shape.rows * shape.columns;
  if (plan.block[1] < elements) {
    plan.responses = ceil_div(outputs, plan.block[1]);
    plan.automorphisms = outputs - plan.responses;
  } else {
    plan.responses = ceil_div(elements, kPolynomialDegree);
    plan.automorphisms =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(elements)));
  }
  return plan;
}

// `count` pieces of `size` elements along one dimension.
struct Pieces {
  std::int64_t size;
  std::int64_t count;
};

std::array<Pieces, 2> cut(std::int64_t length, std::int64_t step) {
  return {Pieces{step, length / step}, Pieces{length % step, length % step == 0 ? 0 : 1}};
}

// Tile sizes under SPU's memory limit: kernel/hal/ring.cc, calcMmulTilingSize (256 MiB; the stack
// names the limit).
MatmulShape tile(const MatmulShape& shape, std::int64_t limit_bytes) {
  const auto [m, k, n] = shape;
  const double operand_bytes = 8.0 * static_cast<double>(k) * static_cast<double>(m + n);
  if (operand_bytes < static_cast<double>(limit_bytes)) return shape;
  const double elements = static_cast<double>(limit_bytes) / 8.0;
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

MatmulPlan plan_matmul(const MatmulShape& shape) {
  thread_local std::map<MatmulShape, MatmulPlan> plans;
  const auto found = plans.find(shape);
  if (found != plans.end()) return found->second;
  return plans.emplace(shape, search_plan(shape)).first->second;
}

Cost plaintext_product(const MatmulShape& shape) {
  const MatmulPlan plan = plan_matmul(shape);
  const auto [b0, b1, b2] = plan.num_blocks;
  const std::size_t sender = encryptor(plan);
  Cost cost;
  cost.sent_bytes[sender] = static_cast<double>(std::min(b0, b2) * b1) * kUpBytes;
  cost.sent_bytes[1 - sender] = static_cast<double>(plan.responses) * kDownBytes;
  cost.flights = 2;
  cost.ct_pt_products = static_cast<double>(b0) * static_cast<double>(b1) * static_cast<double>(b2);
  cost.plaintext_encodings = static_cast<double>(std::max(b0, b2) * b1);
  cost.automorphisms = static_cast<double>(plan.automorphisms);
  return cost;
}

std::size_t product_encryptor(const Stack& stack, const MatmulShape& shape) {
  return encryptor(plan_matmul(tile(shape, stack.matmul_tile_bytes)));
}

Cost matmul(const Stack& stack, const MatmulShape& shape, RightFactor right) {
  check_sizes(shape);
  const MatmulShape step = tile(shape, stack.matmul_tile_bytes);
  Cost cost;
  // Tiles run in sequence; partial products along the inner dimension are added locally.
  for (const Pieces& rows : cut(shape.rows, step.rows))
    for (const Pieces& inner : cut(shape.inner, step.inner))
      for (const Pieces& columns : cut(shape.columns, step.columns)) {
        const double copies = static_cast<double>(rows.count) * static_cast<double>(inner.count) *
                              static_cast<double>(columns.count);
        if (copies > 0)
          cost += sequential(plaintext_product({rows.size, inner.size, columns.size}), copies);
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

}  // namespace aero::mpc
