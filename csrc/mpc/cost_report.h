// One private forward pass, priced: every operation, and the sums over kinds, layers and all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/lowering.h"
#include "csrc/mpc/stacks.h"
#include "csrc/network/network.h"

namespace aero::mpc {

struct CostReport {
  OperationGraph operations;
  std::vector<Cost> operation_costs;  // one per operation
  Cost total;                         // their exact sum, as are the sums below
  double base_bytes = 0;              // of it what a stack with quoted prices quotes none for
  std::vector<std::pair<Kind, Cost>> by_kind;  // the kinds that occur, in their order
  std::vector<Cost> by_layer;                  // one per layer
  Cost outside_layers;                         // set-up, embedding, final norm, head, argmax
  std::vector<std::string> unchecked;          // parts that nothing published or measured confirms
};

// Throws std::invalid_argument for what `lower` refuses, and for sizes whose counts exceed 2^53.
CostReport simulate(const network::Network& network, const Stack& stack, const Pass& pass);

}  // namespace aero::mpc
