// A described network as the operations of one private pass: what each primitive becomes.
//
// Letters: B batch, T queries, S keys, d width, H heads, G key heads, D head width, V vocabulary. A
// whole context has T = S = context_length.
#pragma once

#include <cstdint>

#include "csrc/mpc/operation.h"
#include "csrc/mpc/stacks.h"
#include "csrc/network/network.h"
#include "csrc/spec/architecture_spec.h"

namespace aero::mpc {

// The use of the last logits. kAsStack: the argmax that `Stack::argmax` asks for, its index
// shared. kArgmax: its index is opened to the client. kClient: the logits are, who samples.
enum class NextToken : std::uint8_t { kAsStack, kArgmax, kClient };

inline constexpr std::int64_t kMaxBatch = 65536;

// The sizes of one pass: new positions of each sequence, and all that they see.
struct Pass {
  std::int64_t batch = 1;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  NextToken next_token = NextToken::kAsStack;
  bool first = true;  // the session's set-up is done here
};

// All positions of one sequence.
Pass whole_context(const network::Network& network);

// Throws std::invalid_argument for a pass out of range, for a primitive without a price, and for
// absorb_ffn where it is not exact.
OperationGraph lower(const network::Network& network, const Stack& stack, const Pass& pass);

}  // namespace aero::mpc
