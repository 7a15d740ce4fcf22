// Values that several files of the cost model pass to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/latency.h"
#include "csrc/mpc/lowering.h"
#include "csrc/mpc/operation.h"

namespace aero::bindings {

// An operation of a report with its cost and where it runs.
struct PricedOperation {
  std::string name;
  std::optional<std::int64_t> layer;
  std::string kind;
  std::string shape;
  std::vector<std::size_t> inputs;
  mpc::Cost cost;
  mpc::Evaluator evaluator = mpc::Evaluator::kBoth;
  bool token_by_token = false;
  bool shares_alone = false;  // with their seconds: see Placement
  double ring_products = 0;

  bool operator==(const PricedOperation&) const = default;
};

template <class Member>
auto plain(const Member& member) {
  if constexpr (std::is_enum_v<Member>)
    return static_cast<int>(member);
  else
    return member;
}

template <class Member>
void set(Member& member, pybind11::handle from) {
  if constexpr (std::is_enum_v<Member>)
    member = static_cast<Member>(from.cast<int>());
  else
    member = from.cast<Member>();
}

// Lets Python copy and pickle a bound class of these members, and what holds it.
template <auto... members, class Bound>
void allow_copies(Bound& bound) {
  using Value = typename Bound::type;
  bound.def(pybind11::pickle(
      [](const Value& self) { return pybind11::make_tuple(plain(self.*members)...); },
      [](const pybind11::tuple& state) {
        Value value;
        std::size_t next = 0;
        (set(value.*members, state[next++]), ...);
        return value;
      }));
}

inline pybind11::dict by_kind_dict(const std::vector<std::pair<mpc::Kind, mpc::Cost>>& by_kind) {
  pybind11::dict found;
  for (const auto& [kind, cost] : by_kind) found[pybind11::str(mpc::kind_name(kind))] = cost;
  return found;
}

inline mpc::NextToken next_token_of(const std::string& sampling) {
  if (sampling != "argmax" && sampling != "client")
    throw std::invalid_argument(
        "simulate_generation: sampling must be \"argmax\" or \"client\", got \"" + sampling + "\"");
  return sampling == "argmax" ? mpc::NextToken::kArgmax : mpc::NextToken::kClient;
}

}  // namespace aero::bindings
