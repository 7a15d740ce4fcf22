#include "csrc/mpc/sweep.h"

#include <stdexcept>

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

SweepResult price(const spec::ArchitectureSpec& spec, const Stack& stack,
                  const std::vector<Machines>& machines) {
  SweepResult result;
  result.nanoseconds.resize(machines.size());
  ShapePrices prices(stack);
  const network::Network network = network::describe(spec);
  for (const Operation& operation : lower(network, stack, whole_context(network))) {
    const Cost& cost = prices(operation);
    result.total = checked(result.total + cost, "the network");
    const Placement where = placement(stack, operation.shape);
    for (std::size_t i = 0; i < machines.size(); ++i) {
      const auto& [network, compute] = machines[i];
      const Nanoseconds time =
          operation_time(cost, where, network, compute).alone(network.full_duplex);
      result.nanoseconds[i] = added(result.nanoseconds[i], time);
    }
  }
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
      for (const Stack& stack : sweep.stacks) try {
          results.push_back(price(spec::with_fields(base, fields), stack, sweep.machines));
        } catch (const std::invalid_argument& error) {
          results.push_back({.total = {}, .nanoseconds = {}, .error = error.what()});
        }
    }
  return results;
}

}  // namespace aero::mpc
