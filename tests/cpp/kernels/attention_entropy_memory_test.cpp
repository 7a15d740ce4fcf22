// What attention does to memory: it stays inside its tensors, depends on nothing that was there
// before, and does the same whoever runs its items, and when.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_checks.h"

namespace aero::kernels::testing {
namespace {

class AttentionEntropyMemory : public AttentionEntropy {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionEntropyMemory, ::testing::ValuesIn(attention_isa_names()),
                         [](const auto& info) { return info.param; });

/// Cases that between them reach every path: tails of queries, keys and head widths, the few
/// queries of generation, masks, grouped heads, layouts, whole heads and blocks of keys.
std::vector<AttentionCase> awkward_cases(const std::vector<DataType>& types) {
  std::vector<AttentionCase> cases;
  for (const DataType type : types) {
    for (const Order order : {Order::kHeadMajor, Order::kRowMajor, Order::kPadded})
      for (const int64_t threads : {1, 8})
        for (const int64_t head_dim : {1, 16, 37, 80})
          cases.push_back({.type = type,
                           .batch = 2,
                           .queries = 37,
                           .keys = 67,
                           .head_dim = head_dim,
                           .order = order,
                           .threads = threads});
    for (const int64_t queries : {1, 2, 4})
      for (const int64_t head_dim : {3, 32, 64, 66})
        cases.push_back({.type = type,
                         .heads = 4,
                         .queries = queries,
                         .keys = 131,
                         .head_dim = head_dim,
                         .mask = MaskKind::kFull,
                         .key_parts = queries});
    for (const int64_t queries : {1, 37})
      cases.push_back({.type = type,
                       .queries = queries,
                       .keys = 67,
                       .head_dim = 18,
                       .key_parts = queries == 1 ? 2 : 1,
                       .variant = {.has_max_logits = true},
                       .value_dim = 38});
    for (const MaskKind mask : {MaskKind::kPadding, MaskKind::kFull, MaskKind::kEmptyRows})
      cases.push_back({.type = type, .queries = 17, .keys = 23, .is_causal = false, .mask = mask});
  }
  return cases;
}

std::vector<std::vector<double>> results_of(AttentionProblem& p) {
  std::vector<std::vector<double>> results = {
      p.out.values(), p.entropy.values(), p.logsumexp.values(), p.statistics.values(),
      p.dq.values(),  p.dk.values(),      p.dv.values(),        p.dtemperature.values()};
  if (p.test.variant.has_max_logits) {
    results.push_back(p.max_logits.values());
    results.emplace_back(p.largest_key.begin(), p.largest_key.end());
  }
  return results;
}

TEST_P(AttentionEntropyMemory, NeverTouchesWhatLiesBesideItsTensors) {
  for (const AttentionCase& c : awkward_cases(data_types())) {
    AttentionProblem usual(c);
    usual.run_forward();
    usual.run_backward();
    for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
      const ScopedPlacement placed(placement);
      AttentionProblem guarded(c);
      guarded.run_forward();
      guarded.run_backward();
      EXPECT_EQ(results_of(usual), results_of(guarded)) << c.describe();
    }
  }
}

TEST_P(AttentionEntropyMemory, IsBitwiseTheSameWhateverMemoryHeldBefore) {
  for (const AttentionCase& c : awkward_cases(data_types())) {
    AttentionProblem first(c), second(c);
    // Ones and huge numbers instead of NaN where nothing is written yet.
    for (Tensor* output : {&second.out, &second.entropy, &second.logsumexp, &second.statistics,
                           &second.dq, &second.dk, &second.dv, &second.dtemperature})
      output->fill(1);
    first.run_forward();
    first.run_backward();
    run_kernel(second.forward_params(), c.threads, 0x7f);
    run_kernel(second.backward_params(), c.threads, 0x3f);
    EXPECT_EQ(results_of(first), results_of(second)) << c.describe();
  }
}

TEST_P(AttentionEntropyMemory, IsBitwiseTheSameHoweverItsItemsAreSharedOut) {
  for (const AttentionCase& c : awkward_cases(data_types())) {
    AttentionProblem alone(c), shared(c);
    run_kernel(alone.forward_params(), 1);
    run_kernel(alone.backward_params(), 1);
    run_kernel(shared.forward_params(), 5);
    run_kernel(shared.backward_params(), 3);
    EXPECT_EQ(results_of(alone), results_of(shared)) << c.describe();
  }
}

TEST_P(AttentionEntropyMemory, EveryGradientIsWrittenByOneItemAlone) {
  for (const DataType type : data_types()) {
    // More threads than key heads, and more keys than an item takes.
    AttentionProblem p(
        {.type = type, .heads = 2, .key_heads = 1, .queries = 70, .keys = 150, .threads = 8});
    p.run_forward();
    const auto params = p.backward_params();
    std::vector<int> writers;
    for (int64_t item = 0; item < item_count(params); ++item) {
      size_t n = 0;
      for (Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature})
        gradient->fill(std::numeric_limits<double>::quiet_NaN());
      run_range(params, workspace_of(params, 1).data(), item, item + 1, 0);
      for (const Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature})
        for (const double value : gradient->values()) {
          if (item == 0) writers.push_back(0);
          writers[n++] += !std::isnan(value);
        }
    }
    EXPECT_EQ(writers, std::vector<int>(writers.size(), 1)) << name_of(type);
  }
}

TEST_P(AttentionEntropyMemory, ThreadsThatRunAtOnceDisturbNothing) {
  for (const DataType type : data_types())
    for (const int64_t queries : {3, 70})
      for (const int64_t key_heads : {1, 4}) {
        const AttentionCase c{.type = type,
                              .batch = 2,
                              .heads = 4,
                              .key_heads = key_heads,
                              .queries = queries,
                              .keys = 150,
                              .order = Order::kRowMajor,
                              .threads = 2,
                              .key_parts = queries == 3 ? 2 : 1};
        AttentionProblem alone(c), at_once(c);
        alone.run_forward();
        alone.run_backward();
        run_kernel_at_once(at_once.forward_params(), c.threads);
        run_kernel_at_once(at_once.backward_params(), c.threads);
        EXPECT_EQ(results_of(alone), results_of(at_once)) << c.describe();
      }
}

}  // namespace
}  // namespace aero::kernels::testing
