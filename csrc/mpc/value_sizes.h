// The rows and columns of every value of a network in one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/network/network.h"

namespace aero::mpc {

class ValueSizes {
 public:
  // queries: the rows of a value of the context; keys: those of keys and values that are cached
  // too.
  ValueSizes(const network::Network& network, std::int64_t queries, std::int64_t keys)
      : queries_(queries), keys_(keys), sizes_(network.values.size()) {}

  // Positions of one sequence.
  std::int64_t rows(network::Value value) const {
    return sizes_[value].rows > 0 ? sizes_[value].rows : queries_;
  }

  // Rows of each position: one for each head after split_heads.
  std::int64_t heads(network::Value value) const { return sizes_[value].heads; }

  // Of the scores that an operation makes or reads.
  std::int64_t columns(const network::Operation& operation) const;

  // Of what an operation writes, from what it reads.
  void write(const network::Operation& operation);

 private:
  struct Size {
    std::int64_t heads = 1;
    std::int64_t rows = 0;     // 0: those of the context
    std::int64_t columns = 0;  // 0: the keys of the context
  };

  std::int64_t queries_, keys_;
  std::vector<Size> sizes_;
};

}  // namespace aero::mpc
