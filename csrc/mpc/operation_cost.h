// The cost of one operation of the graph on a stack.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/operation.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

Cost operation_cost(const Stack& stack, const OperationShape& shape);

// The lines of a program that this is the price of, where others for the same function would cost
// something else; empty where it can be written in one way.
std::string lowering_text(const Stack& stack, const Operation& operation);

// Costs of operations as they enter sums (`checked`), each shape priced once: the layers of a
// network are alike, and a dozen shapes make up all of it.
class ShapePrices {
 public:
  explicit ShapePrices(const Stack& stack) : stack_(stack) {}

  // Valid until the next call.
  const Cost& operator()(const Operation& operation);

 private:
  const Stack& stack_;
  std::vector<std::pair<OperationShape, Cost>> known_;
};

}  // namespace aero::mpc
