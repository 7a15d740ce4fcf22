// The functions that a network applies to elements or to rows, each one row of a table: its name,
// its price, how SPU writes it, and whose quoted price it may take.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/prices.h"
#include "csrc/mpc/stacks.h"
#include "csrc/network/network.h"

namespace aero::mpc {

struct PricedFunction {
  std::string_view name;  // of operation_cost
  bool of_rows = false;   // over the channels of each row, else element by element (width 1)
  Cost (*cost)(const Stack& stack, std::int64_t rows, std::int64_t width);
  // The lines of a program that cost this; others for the same function may cost twice as much.
  std::string_view (*lowering)(const Stack& stack);
  // Its own, or that of the function that it is but for public factors or a gain.
  Quotable quoted_as;
};

std::span<const PricedFunction> priced_functions();

// Throws std::out_of_range for a name that is in no row.
const PricedFunction& priced_function(std::string_view name);

const PricedFunction& priced_function(network::Function function);

// nullptr of the diagonal norm, which is a product with weights. LayerNorm and RMSNorm may lack the
// gain.
const PricedFunction* priced_function(network::NormKind kind, bool gain);

}  // namespace aero::mpc
