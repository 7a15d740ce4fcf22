#include "csrc/mpc/cost_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "csrc/mpc/operation_cost.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/matmul_plan.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"
#include "csrc/spec/presets.h"
#include "tests/cpp/mpc/of_specs.h"

namespace aero::mpc {
namespace {

spec::ArchitectureSpec labelled(std::string_view label, std::string_view model = "tiny") {
  return spec::architecture_from_label(label, model, {});
}

TEST(CostReport, TotalsAddUpExactly) {
  for (const std::string_view name : {"spu-2024", "spu-0.9.5", "openbumblebee", "aero-approximate"})
    for (const std::string_view label : {"SM+LN+G", "SM+ScFuFFN_i1", "SOTA:SM+LN+R"}) {
      const CostReport report = simulate(labelled(label, "mini"), stack(name));
      Cost operations, layers = report.outside_layers, parts;
      for (const Cost& cost : report.operation_costs) operations += cost;
      for (const Cost& cost : report.by_layer) layers += cost;
      for (const auto& [kind, cost] : report.by_kind) parts += cost;
      EXPECT_EQ(operations, report.total);
      EXPECT_EQ(layers, report.total);
      EXPECT_EQ(parts, report.total);
    }
}

TEST(CostReport, OverflowIsAnErrorNotAWrongNumber) {
  spec::ArchitectureSpec spec = labelled("SM");
  spec.context_length = std::int64_t{1} << 24;
  EXPECT_THROW(simulate(spec, Stack{}), std::invalid_argument);
  spec = labelled("SM+G");
  spec.context_length = std::int64_t{1} << 20;
  spec.hidden_width = std::int64_t{1} << 24;
  EXPECT_THROW(simulate(spec, Stack{}), std::invalid_argument);
  spec = labelled("SM");
  spec.num_heads = std::int64_t{1} << 16;
  spec.head_dim = std::int64_t{1} << 24;
  EXPECT_THROW(simulate(spec, Stack{}), std::invalid_argument);
}

TEST(CostReport, BatchedHeadsSaveRoundsOnly) {
  const spec::ArchitectureSpec spec = labelled("SM");
  Cost looped = simulate(spec, Stack{}).total;
  const Cost batched = simulate(spec, {.batch_heads = true}).total;
  EXPECT_LT(batched.rounds, looped.rounds);
  looped.rounds = batched.rounds;
  EXPECT_EQ(batched, looped);
}

TEST(CostReport, CausalSkipIsNeverDearer) {
  const Stack skip{.causal_skip = true};
  for (const std::int64_t length : {1, 2, 17, 64, 513})
    for (const Triangle triangle : {Triangle::kResult, Triangle::kLeftFactor}) {
      const MatmulShape shape = triangle == Triangle::kResult ? MatmulShape{length, 64, length}
                                                              : MatmulShape{length, length, 64};
      EXPECT_LE(operation_cost(skip, HeadProduct{3, shape, triangle}).comm_bytes(),
                operation_cost(skip, HeadProduct{3, shape, Triangle::kNone}).comm_bytes());
    }
}

// One query row of twelve heads over 128 keys of 64 words: 768 words fit into one polynomial, whose
// products with plaintexts of 8 keys hold 8 scores, 1,024 coefficients apart; 1,536 scores need 192
// of them, which one response holds. Alone, every head sends one ciphertext each way, the response
// with 128 scores.
// Strips of a power of two of rows, at most eight of them, each over the keys that its last row
// sees; or all rows at once. Scores above the diagonal are not truncated.
TEST(CausalSkip, CutsTrianglesIntoTheCheapestStrips) {
  const Stack stack{.causal_skip = true};
  for (const std::int64_t rows : {100, 128, 512})
    for (const Triangle triangle : {Triangle::kResult, Triangle::kLeftFactor}) {
      const bool is_result = triangle == Triangle::kResult;
      const auto product = [&](std::int64_t height, std::int64_t seen) {
        const MatmulShape shape =
            is_result ? MatmulShape{height, 64, seen} : MatmulShape{height, seen, 64};
        return matmul(stack, shape, RightFactor::kShared).comm_bytes();
      };
      const std::int64_t live = is_result ? rows * (rows + 1) / 2 : rows * 64;
      double best = product(rows, rows) + truncation(is_result ? rows * rows : live).comm_bytes();
      for (std::int64_t height = 1; height < rows; height *= 2) {
        if (8 * height < rows) continue;
        double bytes = truncation(live).comm_bytes();
        for (std::int64_t above = 0; above < rows; above += height)
          bytes += product(std::min(height, rows - above), std::min(above + height, rows));
        best = std::min(best, bytes);
      }
      const MatmulShape shape =
          is_result ? MatmulShape{rows, 64, rows} : MatmulShape{rows, rows, 64};
      const Cost cost = operation_cost(stack, HeadProduct{1, shape, triangle});
      EXPECT_NEAR(cost.comm_bytes(), best, 1e-6);
      EXPECT_EQ(cost.rounds, 4);  // all strips at once, then all truncations
    }
}

TEST(SharedCiphertexts, HoldTheQueriesOfAllHeads) {
  const HeadProduct scores{12, {1, 64, 128}, Triangle::kNone};
  const Stack alone{.batch_heads = true, .cheapest_layouts = true};
  Stack shared = alone;
  shared.share_ciphertexts = true;
  const Cost truncated = operation_cost(alone, Truncation{12 * 128});
  const auto products = [&](const Stack& stack) {
    return operation_cost(stack, scores).comm_bytes() - truncated.comm_bytes();
  };
  EXPECT_NEAR(products(alone), 12 * 2 * (kUpBytes + kDownBytes / 2 + 128 * kResultBytes), 1e-6);
  EXPECT_NEAR(products(shared), 2 * (kUpBytes + kDownBytes), 1e-6);
  EXPECT_EQ(operation_cost(shared, scores).ct_pt_products, 2 * 192);
  EXPECT_EQ(operation_cost(shared, scores).rounds, operation_cost(alone, scores).rounds);
  const HeadProduct two_rows{12, {2, 64, 128}, Triangle::kNone};
  EXPECT_EQ(operation_cost(shared, two_rows), operation_cost(alone, two_rows));
}

TEST(SharedCiphertexts, AreNeverDearerAndNeedHeadsAtOnce) {
  for (const std::int64_t heads : {1, 2, 3, 7, 12, 25})
    for (const std::int64_t length : {1, 5, 64, 129, 1024})
      for (const MatmulShape& shape : {MatmulShape{1, 64, length}, MatmulShape{length, 16, length}})
        for (const Triangle triangle : {Triangle::kNone, Triangle::kResult}) {
          if (triangle == Triangle::kResult && shape.rows != length) continue;
          const HeadProduct product{heads, shape, triangle};
          for (const bool at_once : {false, true}) {
            const Stack alone{.batch_heads = at_once, .causal_skip = true};
            Stack shared = alone;
            shared.share_ciphertexts = true;
            const Cost cost = operation_cost(shared, product);
            EXPECT_LE(cost.comm_bytes(), operation_cost(alone, product).comm_bytes());
            if (!at_once) {
              EXPECT_EQ(cost, operation_cost(alone, product));
            }
          }
        }
}

TEST(SharedCiphertexts, NeverFallWithMoreHeads) {
  const Stack shared{.batch_heads = true, .cheapest_layouts = true, .share_ciphertexts = true};
  for (const std::int64_t keys : {1, 100, 1000}) {
    double fewer = 0;
    for (std::int64_t heads = 1; heads <= 70; ++heads) {
      const HeadProduct product{heads, {1, 64, keys}, Triangle::kNone};
      const double bytes = operation_cost(shared, product).comm_bytes();
      EXPECT_GE(bytes, fewer) << heads << " heads, " << keys << " keys";
      EXPECT_EQ(operation_cost(shared, product).rounds, 4);  // whatever is left over goes along
      fewer = bytes;
    }
  }
}

TEST(CostReport, UncheckedNamesWhatTheNetworkHas) {
  const auto names = [](std::string_view label, const Stack& stack, std::string_view word) {
    const std::vector<std::string> list = simulate(labelled(label), stack).unchecked;
    return std::any_of(list.begin(), list.end(), [&](const std::string& text) {
      return text.find(word) != std::string::npos;
    });
  };
  EXPECT_TRUE(names("SM(t)", Stack{}, "temperature"));
  EXPECT_TRUE(names("SOTA:SM", Stack{}, "shaped"));
  EXPECT_FALSE(names("SOTA:SM", {.secret_shape_factors = true}, "shaped"));
  EXPECT_TRUE(names("SM+G", stack("openbumblebee"), "segment"));
  EXPECT_FALSE(names("SM+G", Stack{}, "GELU"));
  EXPECT_FALSE(names("SM+G_i2", stack("openbumblebee"), "segment"));  // both FFNs are pruned
  Stack priced;
  priced.prices = with_prices({}, {{"softmax", "bytes_per_row", 1}});
  EXPECT_TRUE(names("SM", priced, "qkv/proj, QK, PV, "));
}

}  // namespace
}  // namespace aero::mpc
