// Costs, stacks and their prices as plain Python values, for every file that binds the cost model.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/generation.h"
#include "csrc/mpc/stacks.h"

namespace aero::bindings {

inline pybind11::tuple cost_tuple(const mpc::Cost& cost) {
  const auto whole = [](double count) { return static_cast<std::int64_t>(count); };
  return pybind11::make_tuple(cost.sent_bytes[mpc::kClient], cost.sent_bytes[mpc::kServer],
                              whole(cost.rounds), cost.elementwise_ciphertexts,
                              whole(cost.ct_pt_products), whole(cost.plaintext_encodings),
                              whole(cost.automorphisms), whole(cost.ots));
}

// Operation -> field -> value, as a stack description has them.
using PriceMap = std::map<std::string, std::map<std::string, double>>;

// A named stack with some fields changed and some operations priced.
inline mpc::Stack stack_of(const std::string& name, const spec::FieldValues& fields,
                           const PriceMap& prices) {
  mpc::Stack stack = mpc::with_fields(mpc::stack(name), fields);
  std::vector<mpc::PriceEntry> entries;
  for (const auto& [operation, values] : prices)
    for (const auto& [field, value] : values) entries.push_back({operation, field, value});
  stack.prices = mpc::with_prices(stack.prices, entries);
  return stack;
}

inline mpc::NextToken next_token_of(const std::string& name) {
  if (name == "argmax") return mpc::NextToken::kArgmax;
  if (name == "client") return mpc::NextToken::kClient;
  throw std::invalid_argument(
      "simulate_generation: sampling must be \"argmax\" or \"client\", got \"" + name + "\"");
}

// Batch, index of the token, how it is chosen.
using TokenTuple = std::tuple<std::int64_t, std::int64_t, std::string>;

inline mpc::Pass pass_of(const spec::ArchitectureSpec& spec, const TokenTuple& tuple) {
  const auto& [batch, token, sampling] = tuple;
  return mpc::token_pass(spec, {.batch = batch, .next_token = next_token_of(sampling)}, token);
}

}  // namespace aero::bindings
