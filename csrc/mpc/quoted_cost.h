// Puts a quoted price in the place of a derived cost.
#pragma once

#include "csrc/mpc/cost.h"
#include "csrc/mpc/operation.h"
#include "csrc/mpc/prices.h"

namespace aero::mpc {

bool is_quoted(const Prices& prices, const OperationShape& shape);

// Whether that price stands in place of the derived one; else it is a factor of it.
bool replaces(const Prices& prices, const OperationShape& shape);

// `derived` where nothing is quoted for this operation.
Cost quoted(const Prices& prices, const OperationShape& shape, const Cost& derived);

}  // namespace aero::mpc
