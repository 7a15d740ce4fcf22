// What a description says of its operations as a whole: which are needed for one row only, which
// norms and feed-forwards go into the weights beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/network/network.h"

namespace aero::mpc {

// Of each operation of a segment.
using Flags = std::vector<bool>;

// The operations of a segment, in its last layer, of which one row alone is used where one row of
// the network's result is: the last one, or the one that a head reads. None where a head reads the
// mean of all rows.
Flags one_row_operations(const network::Network& network, const network::Segment& segment);

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
