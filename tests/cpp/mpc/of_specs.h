// What tests ask of networks by their specs.
#pragma once

#include "csrc/mpc/cost_report.h"
#include "csrc/mpc/generation.h"
#include "csrc/mpc/lowering.h"
#include "csrc/network/label_network.h"

namespace aero::mpc {

inline Pass whole_context(const spec::ArchitectureSpec& spec) {
  return whole_context(network::describe(spec));
}

inline OperationGraph build_graph(const spec::ArchitectureSpec& spec, const Stack& stack,
                                  const Pass& pass) {
  return lower(network::describe(spec), stack, pass);
}

inline OperationGraph build_graph(const spec::ArchitectureSpec& spec, const Stack& stack) {
  return build_graph(spec, stack, whole_context(spec));
}

inline CostReport simulate(const spec::ArchitectureSpec& spec, const Stack& stack,
                           const Pass& pass) {
  return simulate(network::describe(spec), stack, pass);
}

inline CostReport simulate(const spec::ArchitectureSpec& spec, const Stack& stack) {
  return simulate(spec, stack, whole_context(spec));
}

inline Pass token_pass(const spec::ArchitectureSpec& spec, const Generation& generation,
                       std::int64_t token) {
  return token_pass(network::describe(spec), generation, token);
}

inline GenerationCost simulate_generation(const spec::ArchitectureSpec& spec, const Stack& stack,
                                          const Generation& generation) {
  return simulate_generation(network::describe(spec), stack, generation);
}

}  // namespace aero::mpc
