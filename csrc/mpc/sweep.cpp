#include "csrc/mpc/sweep.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "csrc/mpc/lowering.h"
#include "csrc/mpc/operation_cost.h"
#include "csrc/network/label_network.h"

namespace aero::mpc {
namespace {

constexpr std::int64_t kMaxCombinations = 10'000'000;

std::int64_t combinations(const Sweep& sweep) {
  constexpr const char* kWhat = "the grid";
  std::int64_t count = element_count({static_cast<std::int64_t>(sweep.specs.size()),
                                      static_cast<std::int64_t>(sweep.stacks.size())},
                                     kWhat);
  for (const SweepAxis& axis : sweep.axes)
    count = element_count({count, static_cast<std::int64_t>(axis.values.size())}, kWhat);
  if (count > kMaxCombinations)
    throw std::invalid_argument("sweep: a grid must have at most " +
                                std::to_string(kMaxCombinations) + " combinations, got " +
                                std::to_string(count));
  return count;
}

// A network with at most two layers of a kind: the last may compute fewer rows than those before.
struct Shortened {
  explicit Shortened(network::Network whole) : network(std::move(whole)) {
    for (network::Segment& segment : network.segments) {
      if (segment.layers > 1) repeats.push_back(segment.layers - 1);
      if (segment.layers > 0) repeats.push_back(1);
      segment.layers = std::min<std::int64_t>(segment.layers, 2);
    }
  }

  network::Network network;
  std::vector<std::int64_t> repeats;  // how many layers of the whole network each layer stands for
};

SweepResult price(const Shortened& shortened, const Stack& stack,
                  const std::vector<Machines>& machines) {
  const OperationGraph graph = lower(shortened.network, stack, whole_context(shortened.network));
  SweepResult result;
  result.nanoseconds.resize(machines.size());
  ShapePrices prices(stack);
  std::vector<Cost> costs;
  for (auto begin = graph.begin(); begin != graph.end();) {
    const std::int64_t layer = begin->layer;
    const auto end =
        std::find_if(begin, graph.end(), [&](const Operation& one) { return one.layer != layer; });
    const std::int64_t repeats =
        layer == kOutsideLayers ? 1 : shortened.repeats[static_cast<std::size_t>(layer)];
    costs.clear();
    for (; begin != end; ++begin) {
      const Cost& cost = costs.emplace_back(prices(*begin));
      const Placement where = placement(stack, begin->shape);
      for (std::size_t i = 0; i < machines.size(); ++i) {
        const auto& [link, compute] = machines[i];
        const Nanoseconds time = operation_time(cost, where, link, compute).alone(link.full_duplex);
        for (std::int64_t j = 0; j < repeats; ++j)
          result.nanoseconds[i] = added(result.nanoseconds[i], time);
      }
    }
    // One after the other: averages over many runs are no whole numbers, and sums of them round.
    for (std::int64_t i = 0; i < repeats; ++i)
      for (const Cost& cost : costs) result.total += cost;
  }
  result.total = checked(result.total, "the network");
  return result;
}

}  // namespace

std::vector<SweepResult> run_sweep(const Sweep& sweep) {
  std::vector<SweepResult> results;
  results.reserve(static_cast<std::size_t>(combinations(sweep)));
  std::int64_t variants = 1;
  for (const SweepAxis& axis : sweep.axes)
    variants *= static_cast<std::int64_t>(axis.values.size());
  for (const spec::ArchitectureSpec& base : sweep.specs)
    for (std::int64_t variant = 0; variant < variants; ++variant) {
      spec::FieldValues fields;
      std::int64_t rest = variant;
      for (auto axis = sweep.axes.rbegin(); axis != sweep.axes.rend(); ++axis) {
        const auto size = static_cast<std::int64_t>(axis->values.size());
        fields.emplace_back(axis->name, axis->values[static_cast<std::size_t>(rest % size)]);
        rest /= size;
      }
      std::optional<Shortened> network;
      std::string reason;  // why there is no such network
      try {
        network.emplace(network::describe(spec::with_fields(base, fields)));
      } catch (const std::invalid_argument& error) {
        reason = error.what();
      }
      for (const Stack& stack : sweep.stacks) try {
          results.push_back(network ? price(*network, stack, sweep.machines)
                                    : SweepResult{.total = {}, .nanoseconds = {}, .error = reason});
        } catch (const std::invalid_argument& error) {
          results.push_back({.total = {}, .nanoseconds = {}, .error = error.what()});
        }
    }
  return results;
}

}  // namespace aero::mpc
