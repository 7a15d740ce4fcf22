// Causal attention by blocks of queries, each of which reads only the keys that one of its queries
// sees.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/network/network.h"

namespace aero::mpc {

// Blocks of equal sizes, which go at once.
struct AttentionBlocks {
  std::int64_t count = 1;
  std::int64_t queries = 0;  // of one
  std::int64_t keys = 0;

  bool operator==(const AttentionBlocks&) const = default;
};

// Of `queries` rows, the last of `keys`, from the first block to the last. All at once for
// block = 0 and where a query sees later keys. Throws std::invalid_argument for too many blocks.
std::vector<AttentionBlocks> attention_blocks(const network::Softmax& softmax, std::int64_t queries,
                                              std::int64_t keys, std::int64_t block);

// For each operation of a segment the softmax of the attention that it belongs to: of scores,
// softmax, shape and weighted_sum; nullptr for any other.
std::vector<const network::Softmax*> softmaxes(const network::Segment& segment);

}  // namespace aero::mpc
