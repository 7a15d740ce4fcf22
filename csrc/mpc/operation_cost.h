// What one operation of the graph costs on a stack.
#pragma once

#include "csrc/mpc/cost.h"
#include "csrc/mpc/op_graph.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

Cost operation_cost(const Stack& stack, const OperationShape& shape);

}  // namespace aero::mpc
