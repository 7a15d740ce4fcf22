// A cost, and the stack that it is priced on: two values that the other files pass around.

#include "csrc/mpc/cost.h"

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/mpc/stacks.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using mpc::Cost;
using mpc::CountName;
// Operation -> field -> value, as a stack description has them.
using PriceMap = std::map<std::string, std::map<std::string, double>>;

constexpr const char* kCostDocument =
    R"doc(The cost of a piece of work; sums over operations, layers and kinds are exact.

Immutable; equal counts are equal costs. `+` adds the costs of work done one after the other.

Example:
    >>> from aero import mpc
    >>> mpc.operation_cost("relu", 1000).rounds
    23
)doc";

py::object as_python(const CountName& name, double count) {
  if (name.whole) return py::int_(static_cast<std::int64_t>(count));
  return py::float_(count);
}

py::dict counts_of(const Cost& cost) {
  py::dict counts;
  mpc::for_each_count(
      [&](const CountName& name, double count) {
        counts[py::str(std::string(name.name))] = as_python(name, count);
      },
      cost);
  return counts;
}

Cost cost_from(const py::kwargs& counts) {
  Cost cost;
  std::size_t known = 0;
  mpc::for_each_count(
      [&](const CountName& name, double& count) {
        const py::str key{std::string(name.name)};
        if (!counts.contains(key)) return;
        count = counts[key].cast<double>();
        if (name.whole && !(count == std::floor(count) && std::abs(count) <= mpc::kMaxExactCount))
          throw std::invalid_argument("Cost: " + std::string(name.name) +
                                      " must be a whole number, got " +
                                      py::repr(counts[key]).cast<std::string>());
        ++known;
      },
      cost);
  if (known != counts.size())
    throw py::type_error("Cost: keywords must be among " +
                         py::str(py::list(counts_of(cost))).cast<std::string>() + ", got " +
                         py::str(py::list(counts)).cast<std::string>());
  return cost;
}

py::dict cost_dict(const Cost& cost) {
  py::dict found;
  found["comm_bytes"] = cost.comm_bytes();
  found.attr("update")(counts_of(cost));
  return found;
}

std::string shown(const Cost& cost) {
  std::string text = "Cost(";
  for (const auto& [name, count] : counts_of(cost)) {
    if (text.size() > 5) text += ", ";
    text += py::str(name).cast<std::string>() + "=" + py::repr(count).cast<std::string>();
  }
  return text + ")";
}

void bind_cost_class(py::module_& module) {
  py::class_<Cost> bound(module, "Cost", kCostDocument);
  bound.def(py::init(&cost_from))
      .def_property_readonly("comm_bytes", &Cost::comm_bytes,
                             "Bytes sent by both parties; each byte counts once.")
      .def("to_dict", &cost_dict, "All counts by name, `comm_bytes` first.")
      .def(py::self + py::self)
      .def(py::self == py::self)
      .def("__hash__",
           [](const Cost& cost) { return py::hash(py::tuple(counts_of(cost).attr("values")())); })
      .def("__repr__", &shown)
      .def(py::pickle([](const Cost& cost) { return counts_of(cost); },
                      [](const py::dict& counts) { return cost_from(py::kwargs(counts)); }));
  const Cost none;
  mpc::for_each_count(
      [&](const CountName& name, double) {
        const auto get = [wanted = name.name](const Cost& cost) {
          py::object found;
          mpc::for_each_count(
              [&](const CountName& one, double count) {
                if (one.name == wanted) found = as_python(one, count);
              },
              cost);
          return found;
        };
        bound.def_property_readonly(std::string(name.name).c_str(), get,
                                    std::string(name.meaning).c_str());
      },
      none);
}

mpc::Stack stack_from(const std::string& base, const spec::FieldValues& fields,
                      const PriceMap& prices) {
  mpc::Stack stack = mpc::with_fields(mpc::stack(base), fields);
  std::vector<mpc::PriceEntry> entries;
  for (const auto& [operation, values] : prices)
    for (const auto& [field, value] : values) entries.push_back({operation, field, value});
  stack.prices = mpc::with_prices(stack.prices, entries);
  return stack;
}

py::dict fields_of(const mpc::Stack& stack) {
  py::dict fields;
  for (const auto& [name, value] : mpc::field_values(stack)) fields[py::str(name)] = value;
  return fields;
}

}  // namespace

void bind_cost(py::module_& module) {
  bind_cost_class(module);
  py::class_<mpc::Stack>(module, "Stack",
                         "A named stack with some fields changed and some operations priced.")
      .def(py::init(&stack_from), py::arg("base"), py::arg("fields") = spec::FieldValues{},
           py::arg("prices") = PriceMap{})
      .def_property_readonly("fields", &fields_of, "Every field with its value.")
      .def_property_readonly("trust", &mpc::trust, "Whom its users trust.");
}

}  // namespace aero::bindings
