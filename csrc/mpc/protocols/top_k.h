// The largest of each row with their places, as SPU computes jax.lax.top_k.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

struct TopKShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t chosen = 0;  // of each row
  bool places = true;       // their places are wanted, not their values alone

  bool operator==(const TopKShape&) const = default;
};

Cost top_k(const Stack& stack, const TopKShape& shape);

}  // namespace aero::mpc
