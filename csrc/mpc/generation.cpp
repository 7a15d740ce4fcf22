#include "csrc/mpc/generation.h"

#include <stdexcept>
#include <string>

#include "csrc/mpc/operation_cost.h"

namespace aero::mpc {
namespace {

// More tokens than any network writes in one go; they bound the time of this function.
constexpr std::int64_t kMaxNewTokens = 1'000'000;

}  // namespace

Pass token_pass(const network::Network& network, const Generation& generation, std::int64_t token) {
  Pass pass = whole_context(network);
  pass.batch = generation.batch;
  pass.next_token = generation.next_token;
  if (token > 0) {
    pass.queries = 1;
    pass.keys += token;  // the prompt, and the tokens so far, the newest of which is the query
    pass.first = false;
  }
  return pass;
}

GenerationCost simulate_generation(const network::Network& network, const Stack& stack,
                                   const Generation& generation) {
  if (generation.new_tokens < 1 || generation.new_tokens > kMaxNewTokens)
    throw std::invalid_argument("simulate_generation: new_tokens must be an integer from 1 to " +
                                std::to_string(kMaxNewTokens) + ", got " +
                                std::to_string(generation.new_tokens));
  GenerationCost result;
  std::array<Cost, kNumKinds> kinds{};
  std::array<bool, kNumKinds> occurs{};
  for (std::int64_t token = 0; token < generation.new_tokens; ++token) {
    const OperationGraph graph = lower(network, stack, token_pass(network, generation, token));
    ShapePrices prices(stack);
    Cost one;
    for (const Operation& operation : graph) {
      const Cost& cost = prices(operation);
      one += cost;
      const auto kind = static_cast<std::size_t>(operation.kind);
      kinds[kind] += cost;
      occurs[kind] = true;
    }
    result.per_token.push_back(one);
    result.total = checked(result.total + one, "the generation");
  }
  for (std::size_t kind = 0; kind < kNumKinds; ++kind)
    if (occurs[kind]) result.by_kind.emplace_back(static_cast<Kind>(kind), kinds[kind]);
  return result;
}

}  // namespace aero::mpc
