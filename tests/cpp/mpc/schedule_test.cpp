#include "csrc/mpc/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "csrc/spec/presets.h"
#include "tests/cpp/mpc/of_specs.h"

namespace aero::mpc {
namespace {

constexpr ScheduleOptions kOneByOne{.overlap = false, .full_duplex = true};
constexpr ScheduleOptions kAtOnce{.overlap = true, .full_duplex = true};

std::vector<Step> steps_of(const CostReport& report, const Stack& stack,
                           const NetworkProfile& network, const ComputeProfile& compute) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < report.operations.size(); ++i) {
    const Operation& operation = report.operations[i];
    steps.push_back({operation_time(report.operation_costs[i], placement(stack, operation.shape),
                                    network, compute),
                     operation.inputs});
  }
  return steps;
}

// Random graphs with many equal and many vanishing times.
std::vector<Step> random_steps(std::mt19937& random) {
  const auto below = [&](int bound) {
    return static_cast<Nanoseconds>(random() % static_cast<unsigned>(bound));
  };
  std::vector<Step> steps(1 + random() % 20);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (Nanoseconds* time :
         {&steps[i].time.compute[0], &steps[i].time.compute[1], &steps[i].time.transfer[0],
          &steps[i].time.transfer[1], &steps[i].time.rounds})
      *time = below(3) == 0 ? 0 : below(10);
    for (std::size_t j = 0; j < i; ++j)
      if (below(4) == 0) steps[i].inputs.push_back(j);
  }
  return steps;
}

Nanoseconds closed_form(const std::vector<Step>& steps, bool full_duplex) {
  Nanoseconds total = 0;
  for (const Step& step : steps) total += step.time.alone(full_duplex);
  return total;
}

// What every schedule must keep to, whatever its options.
void expect_valid(const std::vector<Step>& steps, const Schedule& result, bool full_duplex) {
  std::vector<std::array<Nanoseconds, kNumResources>> work(steps.size());
  std::array<Nanoseconds, 4> lane_end{};
  for (const Segment& segment : result.segments) {
    ASSERT_LT(segment.start, segment.finish);
    const auto resource = static_cast<std::size_t>(segment.resource);
    work[segment.operation][resource] += segment.finish - segment.start;
    EXPECT_GE(segment.start, result.operations[segment.operation].start);
    EXPECT_LE(segment.finish, result.operations[segment.operation].finish);
    if (segment.resource == Resource::kRounds) continue;
    const bool shared = !full_duplex && segment.resource == Resource::kServerToClient;
    Nanoseconds& end = lane_end[shared ? 2 : resource];
    EXPECT_GE(segment.start, end) << "two operations on one resource";
    end = segment.finish;
  }
  Nanoseconds last = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const OperationTime& time = steps[i].time;
    const ScheduledOperation& operation = result.operations[i];
    EXPECT_EQ(work[i], (std::array{time.compute[0], time.compute[1], time.transfer[0],
                                   time.transfer[1], time.rounds}));
    for (const std::size_t input : steps[i].inputs)
      EXPECT_GE(operation.start, result.operations[input].finish);
    EXPECT_EQ(operation.finish - operation.start,
              operation.compute + operation.transfer + operation.rounds + operation.waiting);
    EXPECT_GE(operation.waiting, 0);
    last = std::max(last, operation.finish);
  }
  EXPECT_EQ(result.makespan, last);
  Nanoseconds path = 0;
  for (const std::size_t i : result.critical_path) {
    EXPECT_EQ(result.operations[i].start, path);
    path = result.operations[i].finish;
  }
  EXPECT_EQ(path, result.makespan);
}

TEST(Schedule, WithoutOverlapIsTheClosedFormExactly) {
  for (const char* name : {"spu-2024", "openbumblebee", "aero-optimized"})
    for (const char* label : {"SM+LN+G", "SOTA:SM+ScFFN", "EReg(SM(t)+ScFuFFN)"})
      for (const auto network_name : network_names()) {
        const Stack stack = mpc::stack(name);
        const NetworkProfile network = network_profile(network_name);
        const ComputeProfile compute{.client_slowdown = 3};
        const CostReport report = simulate(spec::architecture_from_label(label, "mini", {}), stack);
        const Schedule result = schedule(steps_of(report, stack, network, compute),
                                         {.overlap = false, .full_duplex = network.full_duplex});
        EXPECT_EQ(result.makespan, closed_form(report, stack, network, compute));
        EXPECT_EQ(result.critical_path.size(), report.operations.size());
      }
}

TEST(Schedule, RandomGraphsKeepOrderAndResources) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Step> steps = random_steps(random);
    for (const bool full_duplex : {false, true}) {
      const Schedule alone = schedule(steps, {.overlap = false, .full_duplex = full_duplex});
      const Schedule at_once = schedule(steps, {.overlap = true, .full_duplex = full_duplex});
      expect_valid(steps, alone, full_duplex);
      expect_valid(steps, at_once, full_duplex);
      EXPECT_EQ(alone.makespan, closed_form(steps, full_duplex));
      EXPECT_LE(at_once.makespan, alone.makespan);
      for (std::size_t resource = 0; resource < 4; ++resource)
        EXPECT_GE(at_once.makespan, at_once.busy[resource]);
    }
  }
}

TEST(Schedule, IndependentOperationsShareTheTime) {
  // One computes at the client, one sends; a third needs both.
  const std::vector<Step> steps = {
      {{{5, 0}, {0, 0}, 1}, {}}, {{{0, 0}, {4, 0}, 1}, {}}, {{{0, 2}, {0, 0}, 0}, {0, 1}}};
  EXPECT_EQ(schedule(steps, kOneByOne).makespan, 13);
  const Schedule result = schedule(steps, kAtOnce);
  EXPECT_EQ(result.makespan, 8);
  EXPECT_EQ(result.critical_path, (std::vector<std::size_t>{0, 2}));
}

TEST(Schedule, AnEarlierOperationInterruptsALaterOne) {
  // Operation 2 has the client's processor from 0 on; operation 1 needs it at 3.
  const std::vector<Step> steps = {
      {{{0, 3}, {0, 0}, 0}, {}}, {{{4, 0}, {0, 0}, 0}, {0}}, {{{10, 0}, {0, 0}, 0}, {}}};
  const Schedule result = schedule(steps, kAtOnce);
  EXPECT_EQ(result.operations[1].finish, 7);
  EXPECT_EQ(result.operations[2].finish, 14);
  EXPECT_EQ(result.operations[2].waiting, 4);
  EXPECT_EQ(result.operations[2].bound, Resource::kClientCompute);
}

TEST(Schedule, OneChannelCarriesOneDirectionAtATime) {
  const std::vector<Step> steps = {{{{0, 0}, {3, 4}, 2}, {}}};
  const Schedule one_channel = schedule(steps, {.overlap = true, .full_duplex = false});
  EXPECT_EQ(one_channel.makespan, 9);
  EXPECT_EQ(one_channel.operations[0].transfer, 7);
  EXPECT_EQ(one_channel.operations[0].waiting, 0);
  EXPECT_EQ(schedule(steps, {.overlap = true, .full_duplex = true}).makespan, 6);
}

TEST(Schedule, AFasterOperationSavesWhatItWasWaitedFor) {
  const std::vector<Step> steps = {
      {{{5, 0}, {0, 0}, 1}, {}}, {{{0, 0}, {4, 0}, 1}, {}}, {{{0, 2}, {0, 0}, 0}, {0, 1}}};
  const double without = std::numeric_limits<double>::infinity();
  EXPECT_EQ(schedule(sped_up(steps, {without, 1, 1}), kAtOnce).makespan, 7);
  EXPECT_EQ(schedule(sped_up(steps, {1, without, 1}), kAtOnce).makespan, 8);
  EXPECT_EQ(schedule(sped_up(steps, {1, 1, 2}), kOneByOne).makespan, 12);
}

TEST(Schedule, NothingTakesNoTime) {
  EXPECT_EQ(schedule({}, kAtOnce).makespan, 0);
  const Schedule result = schedule({{{}, {}}, {{}, {0}}}, kAtOnce);
  EXPECT_EQ(result.makespan, 0);
  EXPECT_TRUE(result.segments.empty());
}

// Where compute and messages take as long, the messages end the operation.
TEST(Schedule, AnOperationIsBoundByWhatTakesLongestTheLastOfEquals) {
  const ScheduleOptions one_by_one{.overlap = false, .full_duplex = true};
  const auto bound = [&](Nanoseconds compute, Nanoseconds transfer) {
    return schedule({{{{compute, 0}, {transfer, 0}, 0}, {}}}, one_by_one).operations[0].bound;
  };
  EXPECT_EQ(bound(3, 2), Resource::kClientCompute);
  EXPECT_EQ(bound(3, 3), Resource::kClientToServer);
}

TEST(Schedule, BadInputsAreErrors) {
  EXPECT_THROW(schedule({{{}, {0}}}, kAtOnce), std::invalid_argument);
  EXPECT_THROW(schedule({{{}, {}}, {{}, {2}}}, kAtOnce), std::invalid_argument);
  EXPECT_THROW(sped_up({{{}, {}}}, {}), std::invalid_argument);
  EXPECT_THROW(sped_up({{{}, {}}}, {0.0}), std::invalid_argument);
  EXPECT_NO_THROW(sped_up({{{}, {}}}, {0.001}));
  EXPECT_THROW(sped_up({{{}, {}}}, {std::numeric_limits<double>::quiet_NaN()}),
               std::invalid_argument);
  const Nanoseconds long_time = Nanoseconds{1} << 62;
  EXPECT_THROW(schedule({{{{long_time, 0}, {}, 0}, {}}, {{{long_time, 0}, {}, 0}, {}}}, kAtOnce),
               std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
