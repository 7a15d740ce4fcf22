#include "csrc/mpc/protocols/matmul_plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "csrc/mpc/cost.h"

namespace aero::mpc {
namespace {

using Block = std::array<std::int64_t, 3>;

Block count_blocks(const MatmulShape& shape, const Block& block) {
  return {ceil_div(shape.rows, block[0]), ceil_div(shape.inner, block[1]),
          ceil_div(shape.columns, block[2])};
}

// matmat_prot.cc weighs ciphertexts sent with 1000, the packing work of the responses with its
// number of automorphisms, ciphertext products with a tenth. The last of equal minima wins.
Block search_block(const MatmulShape& shape, bool pack_responses) {
  Block best{};
  double best_weight = -1;
  const std::int64_t packed_outputs = ceil_div(shape.rows * shape.columns, kPolynomialDegree);
  const std::int64_t most_rows = std::min(kPolynomialDegree, shape.rows);
  for (std::int64_t d0 = 1; d0 <= most_rows; ++d0) {
    const std::int64_t room = kPolynomialDegree / d0;
    // More rows that leave as much room are never more blocks, so the most of them win.
    d0 = std::min(most_rows, kPolynomialDegree / room);
    for (std::int64_t d1 = 1; d1 <= std::min(shape.inner, room);
         d1 = pack_responses ? 2 * d1 : d1 + 1) {
      const Block block = {d0, d1, std::min(shape.columns, room / d1)};
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

// A response that holds `results` results and is not packed.
double unpacked_bytes(std::int64_t results) {
  constexpr double kPolynomialBytes = kDownBytes / 2;
  return kPolynomialBytes + std::min(kPolynomialBytes, kResultBytes * static_cast<double>(results));
}

// Every product of blocks is a response of its own; the last ones of a dimension are smaller.
MatmulPlan unpacked(const MatmulShape& shape, const Block& block) {
  MatmulPlan plan{.block = block, .num_blocks = count_blocks(shape, block)};
  plan.responses = plan.num_blocks[0] * plan.num_blocks[2];
  const auto bytes = [&](std::int64_t rows, std::int64_t row_blocks) {
    const std::int64_t whole = shape.columns / block[2];
    const std::int64_t rest = shape.columns % block[2];
    return static_cast<double>(row_blocks) *
           (static_cast<double>(whole) * unpacked_bytes(rows * block[2]) +
            (rest == 0 ? 0.0 : unpacked_bytes(rows * rest)));
  };
  const std::int64_t rest = shape.rows % block[0];
  plan.response_bytes = bytes(block[0], shape.rows / block[0]) + (rest == 0 ? 0.0 : bytes(rest, 1));
  return plan;
}

// d1 responses, whose wanted coefficients lie d1 apart, are packed into one.
MatmulPlan packed(const MatmulShape& shape, const Block& block) {
  MatmulPlan plan = unpacked(shape, block);
  const std::int64_t outputs = plan.responses;
  if (outputs <= 1) return plan;
  const std::int64_t elements = shape.rows * shape.columns;
  if (block[1] < elements) {
    plan.responses = ceil_div(outputs, block[1]);
    plan.automorphisms = outputs - plan.responses;
  } else {
    plan.responses = ceil_div(elements, kPolynomialDegree);
    plan.automorphisms =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(elements)));
  }
  plan.response_bytes = static_cast<double>(plan.responses) * kDownBytes;
  return plan;
}

MatmulPlan plan_of_spu(const MatmulShape& shape) {
  const Block block = search_block(shape, true);
  const Block count = count_blocks(shape, block);
  // One response needs no packing: search again for the product alone.
  return count[0] * count[2] > 1 ? packed(shape, block)
                                 : unpacked(shape, search_block(shape, false));
}

// Calls `use` with the smallest step of at most `largest` for every number of steps that cover
// `length`: a longer step that needs as many leaves less room to the other dimensions.
template <class Use>
void for_each_step(std::int64_t length, std::int64_t largest, Use use) {
  std::int64_t step = std::min(length, largest);
  while (true) {
    step = ceil_div(length, ceil_div(length, step));
    use(step);
    if (step-- == 1) return;
  }
}

MatmulPlan plan_of_fewest_bytes(const MatmulShape& shape) {
  MatmulPlan best;
  const auto rank = [](const MatmulPlan& plan) {
    const auto [b0, b1, b2] = plan.num_blocks;
    const double products =
        static_cast<double>(b0) * static_cast<double>(b1) * static_cast<double>(b2);
    return std::tuple(plan.comm_bytes(), products, plan.automorphisms);
  };
  const auto consider = [&](const MatmulPlan& plan) {
    if (best.responses == 0 || rank(plan) < rank(best)) best = plan;
  };
  for (std::int64_t d1 = 1; d1 <= kPolynomialDegree; d1 *= 2) {
    const std::int64_t room = kPolynomialDegree / d1;
    for_each_step(shape.rows, room, [&](std::int64_t d0) {
      consider(packed(shape, {d0, d1, std::min(shape.columns, room / d0)}));
    });
  }
  // Without packing d1 need not be a power of two; worth it where few responses hold everything.
  if (shape.rows * shape.columns > kPolynomialDegree) return best;
  for_each_step(shape.rows, shape.rows, [&](std::int64_t d0) {
    for_each_step(shape.columns, shape.columns, [&](std::int64_t d2) {
      consider(unpacked(shape, {d0, std::min(shape.inner, kPolynomialDegree / (d0 * d2)), d2}));
    });
  });
  return best;
}

}  // namespace

std::int64_t MatmulPlan::encryptions() const {
  return std::min(num_blocks[0], num_blocks[2]) * num_blocks[1];
}

double MatmulPlan::comm_bytes() const {
  return static_cast<double>(encryptions()) * kUpBytes + response_bytes;
}

void check_sizes(const MatmulShape& shape) {
  for (const auto& [a, b] : {std::pair{shape.rows, shape.inner},
                             {shape.inner, shape.columns},
                             {shape.rows, shape.columns}})
    element_count({a, b}, "matrix product");
}

MatmulPlan plan_matmul(const MatmulShape& shape, BlockChoice choice) {
  thread_local std::map<std::pair<MatmulShape, BlockChoice>, MatmulPlan> plans;
  const std::pair key(shape, choice);
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  check_sizes(shape);
  const MatmulPlan plan =
      choice == BlockChoice::kSpu ? plan_of_spu(shape) : plan_of_fewest_bytes(shape);
  return plans.emplace(key, plan).first->second;
}

}  // namespace aero::mpc
