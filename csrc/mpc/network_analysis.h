// What a description says of its operations as a whole: which are needed for one row only, which
// norms and feed-forwards go into the weights beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/network/network.h"

namespace aero::mpc {

// Of each operation of a segment.
using Flags = std::vector<bool>;

// How many rows of each operation of a segment, in its last layer, the network's outputs read where
// the last row alone of its logits is used; kAllRows where they read all. A head that classifies
// reads one, the first or the last; one that reads a mean reads all. Outputs are the values of the
// last segment that nothing reads.
inline constexpr std::int64_t kAllRows = -1;
std::vector<std::int64_t> rows_read(const network::Network& network,
                                    const network::Segment& segment);

// The diagonal norms that are factors of the next weights' rows: only products with weights read
// them.
Flags folding_norms(const network::Segment& segment);

// Whether every FFN can be multiplied into the neighbouring weights: all linear and fused, and no
// norm anywhere but foldable ones.
bool can_absorb_ffn(const network::Network& network);

// Whether every softmax sees the keys up to its position only.
bool is_causal(const network::Network& network);

// Of all segments.
std::int64_t layer_count(const network::Network& network);

}  // namespace aero::mpc
