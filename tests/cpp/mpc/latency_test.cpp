#include "csrc/mpc/latency.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "csrc/spec/presets.h"
#include "tests/cpp/mpc/of_specs.h"

namespace aero::mpc {
namespace {

CostReport report_of(std::string_view label, const Stack& stack) {
  return simulate(spec::architecture_from_label(label, "mini", {}), stack);
}

TEST(Latency, PaperTestbedIsItsFiveFittedNumbers) {
  const Stack stack{.setup = false};
  for (const char* label : {"SM+LN+G", "SM+ScFuFFN", "SOTA:SM+ScFFN"}) {
    const CostReport report = report_of(label, stack);
    double embedding_products = 0;
    for (const auto& [kind, cost] : report.by_kind)
      if (kind == Kind::kEmbed) embedding_products = cost.ct_pt_products;
    const Cost& total = report.total;
    const double seconds =
        4.8 * total.comm_bytes() / 1e9 + 6e-3 * total.rounds + 54e-6 * embedding_products +
        30e-6 * (total.ct_pt_products - embedding_products) + 46.7e-9 * total.ots;
    // Every operation is rounded to nanoseconds in five parts.
    const double rounding = 5e-9 * static_cast<double>(report.operations.size());
    EXPECT_NEAR(static_cast<double>(closed_form(report, stack, {}, {})) / 1e9, seconds, rounding);
  }
}

TEST(Latency, DirectionsAndPartiesCountForThemselves) {
  Cost cost;
  cost.sent_bytes = {1e6, 3e6};
  cost.rounds = 10;
  cost.ct_pt_products = 100;
  cost.ots = 1000;
  const NetworkProfile network{8, 16, 0.2, 0.05, true};
  const ComputeProfile compute{
      .threads = 4, .ct_pt_product_seconds = 0.4, .ot_seconds = 0.004, .client_slowdown = 2};
  OperationTime time = operation_time(cost, {Evaluator::kBoth, false}, network, compute);
  EXPECT_EQ(time.compute[kServer], 6'000'000'000);  // (50 * 0.4 + 1000 * 0.004) / 4
  EXPECT_EQ(time.compute[kClient], 12'000'000'000);
  EXPECT_EQ(time.transfer[kClient], 1'000'000'000);
  EXPECT_EQ(time.transfer[kServer], 1'500'000'000);
  EXPECT_EQ(time.rounds, 1'500'000'000);
  EXPECT_EQ(time.alone(true), 15'000'000'000);
  EXPECT_EQ(time.alone(false), 16'000'000'000);
  // Without ciphertexts: each party's own bytes, and the same products at both.
  ComputeProfile on_shares{.threads = 2, .share_byte_seconds = 1e-6, .ring_product_seconds = 1e-3};
  Cost shares;
  shares.sent_bytes = {2e6, 4e6};
  time = operation_time(shares, {.shares_alone = true, .ring_products = 1000}, network, on_shares);
  EXPECT_EQ(time.compute[kClient], 1'500'000'000);
  EXPECT_EQ(time.compute[kServer], 2'500'000'000);
  EXPECT_EQ(operation_time(shares, {}, network, on_shares).compute_alone(), 0);
  EXPECT_EQ(placement(stack("spu-aby3"), HeadProduct{12, {128, 64, 32}}).ring_products,
            12 * 128 * 64 * 32);
  EXPECT_FALSE(placement(Stack{}, HeadProduct{12, {128, 64, 32}}).shares_alone);
  time = operation_time(cost, {Evaluator::kServer, false}, network, compute);
  EXPECT_EQ(time.compute[kServer], 11'000'000'000);
  EXPECT_EQ(time.compute[kClient], 2'000'000'000);
}

TEST(Latency, TheTableRowsOfTheEmbeddingHaveTheirOwnRate) {
  Cost cost;
  cost.ct_pt_products = 1e6;
  EXPECT_EQ(operation_time(cost, {Evaluator::kBoth, true}, {}, {}).compute_alone(), 54'000'000'000);
  EXPECT_EQ(operation_time(cost, {Evaluator::kBoth, false}, {}, {}).compute_alone(),
            30'000'000'000);
  const EmbeddingShape shape{128, 50257, 768};
  EXPECT_TRUE(placement(Stack{}, shape).token_by_token);
  const Placement by_client = placement({.client_one_hot = true}, shape);
  EXPECT_FALSE(by_client.token_by_token);
  EXPECT_EQ(by_client.evaluator, Evaluator::kBoth);
  const Stack known{.private_weights = true, .client_one_hot = true};
  EXPECT_EQ(placement(known, shape).evaluator, Evaluator::kServer);
}

TEST(Latency, WhoDoesNotEncryptEvaluates) {
  const WeightProduct wide{{128, 768, 50257}};
  const WeightProduct narrow{{4096, 768, 16}};
  EXPECT_EQ(placement(Stack{}, wide).evaluator, Evaluator::kBoth);
  EXPECT_EQ(placement({.private_weights = true}, wide).evaluator, Evaluator::kServer);
  EXPECT_EQ(placement({.private_weights = true}, narrow).evaluator, Evaluator::kClient);
  EXPECT_EQ(placement({.private_weights = true}, HeadProduct{12, {128, 64, 128}}).evaluator,
            Evaluator::kBoth);
}

TEST(Latency, TheStatedNetworkNeedsHalfTheBytesAtLeast) {
  const CostReport report = report_of("SM+LN+G", Stack{});
  const double bits = report.total.comm_bytes() / 2 * 8;
  const Nanoseconds time =
      closed_form(report, Stack{}, network_profile("wan-100mbps"), compute_profile("none"));
  EXPECT_GT(static_cast<double>(time) / 1e9, bits / 100e6 + report.total.rounds * 0.04);
}

TEST(Latency, TimesThatNobodyWaitsForAreErrors) {
  Cost cost;
  cost.rounds = 1e7;
  const NetworkProfile slow{.round_trip_seconds = 3600};
  EXPECT_THROW(operation_time(cost, {}, slow, {}), std::invalid_argument);
  // Up to a year of 365 days, and that one included.
  constexpr double kYear = 365 * 86400;
  const NetworkProfile yearly{.round_trip_seconds = 2 * kYear, .software_seconds = 0};
  EXPECT_EQ(operation_time({.rounds = 1}, {}, yearly, {}).rounds, 31'536'000'000'000'000);
  EXPECT_THROW(added(Nanoseconds{1} << 62, Nanoseconds{1} << 62), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
