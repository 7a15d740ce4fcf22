#include "csrc/mpc/sweep.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "csrc/mpc/cost_report.h"
#include "csrc/mpc/generation.h"
#include "csrc/spec/presets.h"
#include "tests/cpp/mpc/of_specs.h"

namespace aero::mpc {
namespace {

using spec::FieldValue;

spec::ArchitectureSpec tiny(std::string_view label) {
  return spec::architecture_from_label(label, "tiny", {});
}

TEST(Sweep, RowsAreReportsInTheOrderOfTheLoops) {
  const Sweep sweep{
      .specs = {tiny("SM+LN+G"), tiny("SM")},
      .axes = {{"context_length", {FieldValue{std::int64_t{8}}, FieldValue{std::int64_t{32}}}},
               {"num_layers", {FieldValue{std::int64_t{1}}, FieldValue{std::int64_t{3}}}}},
      .stacks = {Stack{}, stack("openbumblebee")},
      .machines = {{network_profile("lan-1gbps"), compute_profile("none")}}};
  const std::vector<SweepResult> rows = run_sweep(sweep);
  ASSERT_EQ(rows.size(), 2u * 2 * 2 * 2);
  std::size_t row = 0;
  for (const auto& base : sweep.specs)
    for (const std::int64_t length : {8, 32})
      for (const std::int64_t layers : {1, 3})
        for (const Stack& one : sweep.stacks) {
          spec::ArchitectureSpec spec = base;
          spec.context_length = length;
          spec.num_layers = layers;
          const CostReport report = simulate(spec, one);
          const auto& [network, compute] = sweep.machines[0];
          EXPECT_EQ(rows[row].total, report.total);
          EXPECT_EQ(rows[row].nanoseconds[0], closed_form(report, one, network, compute));
          ++row;
        }
}

// Layers that repeat are lowered once, the last layer for itself, as it may have one row alone.
TEST(Sweep, RepeatedAndSkippedLayersAreThoseOfReports) {
  Stack one_row = stack("aero-optimized");
  one_row.last_layer_one_row = true;
  Sweep sweep{.specs = {},
              .axes = {},
              .stacks = {Stack{}, one_row, stack("spu-aby3")},
              .machines = {{network_profile("wan-100mbps"), compute_profile("spu-epyc")}}};
  for (const std::string_view label : {"SM+LN+G", "SM+FN+R_i4", "EReg(SM(t)+ScFuFFN+S4)"})
    for (const std::string_view model : {"gpt2", "pythia-70m"})
      sweep.specs.push_back(spec::architecture_from_label(label, model, {}));
  const std::vector<SweepResult> rows = run_sweep(sweep);
  std::size_t row = 0;
  for (const auto& spec : sweep.specs)
    for (const Stack& stack : sweep.stacks) {
      const CostReport report = simulate(spec, stack);
      const auto& [network, compute] = sweep.machines[0];
      EXPECT_EQ(rows[row].error, "");
      EXPECT_EQ(rows[row].total, report.total);
      EXPECT_EQ(rows[row].nanoseconds[0], closed_form(report, stack, network, compute));
      ++row;
    }
}

TEST(Sweep, CombinationsThatDoNotExistSaySo) {
  const Sweep sweep{
      .specs = {tiny("SM")},
      .axes = {{"num_heads", {FieldValue{std::int64_t{2}}, FieldValue{std::int64_t{5}}}}},
      .stacks = {Stack{}},
      .machines = {}};
  const std::vector<SweepResult> rows = run_sweep(sweep);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_NE(rows[1].error.find("num_heads"), std::string::npos);
}

TEST(Sweep, GridsBeyondMemoryAreErrors) {
  Sweep sweep{.specs = {tiny("SM")}, .axes = {}, .stacks = {Stack{}}, .machines = {}};
  const std::vector<FieldValue> values(4000, FieldValue{std::int64_t{2}});
  sweep.axes = {{"num_layers", values}, {"context_length", values}};
  EXPECT_THROW(run_sweep(sweep), std::invalid_argument);
}

TEST(Generation, TokensAddUpAndTheFirstIsThePrompt) {
  const spec::ArchitectureSpec spec = tiny("SM+LN+R");
  const Generation generation{.batch = 3, .new_tokens = 4};
  const GenerationCost cost = simulate_generation(spec, Stack{}, generation);
  ASSERT_EQ(cost.per_token.size(), 4u);
  Cost tokens, parts;
  for (const Cost& one : cost.per_token) tokens += one;
  for (const auto& [kind, one] : cost.by_kind) parts += one;
  EXPECT_EQ(tokens, cost.total);
  EXPECT_EQ(parts, cost.total);
  for (const std::int64_t token : {0, 1, 3}) {
    const Pass pass = token_pass(spec, generation, token);
    EXPECT_EQ(pass.keys, spec.context_length + token);
    EXPECT_EQ(pass.first, token == 0);
    EXPECT_EQ(simulate(spec, Stack{}, pass).total, cost.per_token[static_cast<std::size_t>(token)]);
  }
}

TEST(Generation, OneUnopenedTokenOfOnePromptIsAForwardPass) {
  const spec::ArchitectureSpec spec = tiny("SM+LN+R");
  const Cost first = simulate_generation(spec, Stack{}, {}).total;
  Cost pass = simulate(spec, Stack{}).total;
  pass.sent_bytes[kServer] += 8;  // the share of the index
  pass.rounds += 1;
  EXPECT_EQ(first, pass);
}

TEST(Generation, TheClientSamplesFromOpenedLogits) {
  const spec::ArchitectureSpec spec = tiny("SM");
  const Generation client{.batch = 2, .new_tokens = 1, .next_token = NextToken::kClient};
  const GenerationCost cost = simulate_generation(spec, Stack{}, client);
  bool found = false;
  for (const auto& [kind, one] : cost.by_kind) {
    EXPECT_NE(kind, Kind::kArgmax);
    if (kind != Kind::kReveal) continue;
    found = true;
    EXPECT_EQ(one, (Cost{.sent_bytes = {0, 8.0 * 2 * 256}, .rounds = 1}));
  }
  EXPECT_TRUE(found);
}

TEST(Generation, SizesOutOfRangeAreErrors) {
  const spec::ArchitectureSpec spec = tiny("SM");
  EXPECT_THROW(simulate_generation(spec, Stack{}, {.new_tokens = 0}), std::invalid_argument);
  EXPECT_THROW(simulate_generation(spec, Stack{}, {.batch = 0}), std::invalid_argument);
  const auto refused = [&](std::int64_t new_tokens) -> std::string {
    try {
      simulate_generation(spec, Stack{}, {.batch = 0, .new_tokens = new_tokens});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused(1'000'000).find("batch must be"), std::string::npos);
  EXPECT_NE(refused(1'000'001).find("new_tokens must be"), std::string::npos);
}

}  // namespace
}  // namespace aero::mpc
