// Generating text in private: a pass over the prompts, then one position at a time with the keys
// and values of all earlier ones kept as shares.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/lowering.h"
#include "csrc/mpc/stacks.h"
#include "csrc/network/network.h"

namespace aero::mpc {

struct Generation {
  std::int64_t batch = 1;       // sequences side by side, of equal lengths
  std::int64_t new_tokens = 1;  // of each sequence
  NextToken next_token = NextToken::kArgmax;
};

struct GenerationCost {
  // The first token's includes the prompts and the set-up, those of the others are one position's.
  std::vector<Cost> per_token;
  Cost total;
  std::vector<std::pair<Kind, Cost>> by_kind;  // the kinds that occur, in their order
};

// The pass that makes a token, from 0: over `context_length` prompt positions, or over one query
// that sees the prompt and all tokens before it.
Pass token_pass(const network::Network& network, const Generation& generation, std::int64_t token);

// `network.context_length` is the prompt's length. Throws std::invalid_argument for sizes out of
// range.
GenerationCost simulate_generation(const network::Network& network, const Stack& stack,
                                   const Generation& generation);

}  // namespace aero::mpc
