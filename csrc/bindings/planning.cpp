// Generations, sweeps and stack descriptions for Python as plain values.

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/cost_values.h"
#include "csrc/mpc/generation.h"
#include "csrc/mpc/sweep.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

// Base, fields, prices.
using StackTuple = std::tuple<std::string, spec::FieldValues, PriceMap>;
// Fields of network and compute profiles, by the name of a profile.
using MachinesTuple = std::tuple<std::string, spec::FieldValues, std::string, spec::FieldValues>;
using Axes = std::vector<std::pair<std::string, std::vector<spec::FieldValue>>>;

py::dict generation_cost(const spec::ArchitectureSpec& spec, const StackTuple& stack,
                         std::int64_t batch, std::int64_t new_tokens, const std::string& sampling) {
  const mpc::GenerationCost cost = mpc::simulate_generation(
      spec, std::apply(stack_of, stack), {batch, new_tokens, next_token_of(sampling)});
  py::list per_token;
  for (const mpc::Cost& one : cost.per_token) per_token.append(cost_tuple(one));
  py::dict by_kind;
  for (const auto& [part, one] : cost.by_part)
    by_kind[py::str(mpc::part_name(part))] = cost_tuple(one);
  py::dict result;
  result["per_token"] = per_token;
  result["total"] = cost_tuple(cost.total);
  result["by_kind"] = by_kind;
  return result;
}

py::list sweep_costs(const std::vector<spec::ArchitectureSpec>& specs, const Axes& axes,
                     const std::vector<StackTuple>& stacks,
                     const std::vector<MachinesTuple>& machines) {
  mpc::Sweep sweep;
  sweep.specs = specs;
  for (const auto& [name, values] : axes) sweep.axes.push_back({name, values});
  for (const StackTuple& stack : stacks) sweep.stacks.push_back(std::apply(stack_of, stack));
  for (const auto& [network, network_fields, compute, compute_fields] : machines)
    sweep.machines.push_back({mpc::with_fields(mpc::network_profile(network), network_fields),
                              mpc::with_fields(mpc::compute_profile(compute), compute_fields)});
  std::vector<mpc::SweepResult> results;
  {
    const py::gil_scoped_release release;
    results = mpc::run_sweep(sweep);
  }
  py::list rows;
  for (const mpc::SweepResult& result : results) {
    py::list seconds;
    for (const mpc::Nanoseconds time : result.seconds)
      seconds.append(static_cast<double>(time) * 1e-9);
    rows.append(py::make_tuple(cost_tuple(result.total), py::tuple(seconds), result.error));
  }
  return rows;
}

py::dict price_fields() {
  py::dict fields;
  for (const mpc::PriceField& field : mpc::price_fields())
    fields[py::str(field.name)] = field.largest;
  return fields;
}

}  // namespace

void bind_planning(py::module_& module) {
  module.def("generation_cost", &generation_cost, py::arg("spec"), py::arg("stack"),
             py::arg("batch"), py::arg("new_tokens"), py::arg("sampling"),
             "Prompts and new tokens; see aero.mpc.simulate_generation.");
  module.def("sweep_costs", &sweep_costs, py::arg("specs"), py::arg("axes"), py::arg("stacks"),
             py::arg("machines"), "Totals of a grid; see aero.mpc.sweep.");
  module.def(
      "checked_stack",
      [](const StackTuple& stack) { static_cast<void>(std::apply(stack_of, stack)); },
      py::arg("stack"), "Raises ValueError for a base, field or price out of range.");
  module.def(
      "priced_operation_names",
      [] {
        const auto& names = mpc::priced_operation_names();
        return std::vector<std::string_view>(names.begin(), names.end());
      },
      "The operations that a stack description can price.");
  module.def("price_fields", &price_fields, "Fields of a price with their largest values.");
}

}  // namespace aero::bindings
