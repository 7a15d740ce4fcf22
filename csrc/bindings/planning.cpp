// Generations, sweeps and the fields of stack descriptions for Python.

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/cost_values.h"
#include "csrc/mpc/generation.h"
#include "csrc/mpc/sweep.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using Axes = std::vector<std::pair<std::string, std::vector<spec::FieldValue>>>;

py::dict simulate_generation(const network::Network& network, const mpc::Stack& stack,
                             std::int64_t batch, std::int64_t new_tokens,
                             const std::string& sampling) {
  const mpc::GenerationCost cost =
      mpc::simulate_generation(network, stack, {batch, new_tokens, next_token_of(sampling)});
  py::dict values;
  values["per_token"] = py::tuple(py::cast(cost.per_token));
  values["total"] = cost.total;
  values["by_kind"] = by_kind_dict(cost.by_kind);
  return values;
}

std::vector<mpc::SweepResult> sweep(const std::vector<spec::ArchitectureSpec>& specs,
                                    const Axes& axes, const std::vector<mpc::Stack>& stacks,
                                    const std::vector<spec::FieldValues>& networks,
                                    const spec::FieldValues& compute) {
  mpc::Sweep grid;
  grid.specs = specs;
  for (const auto& [name, values] : axes) grid.axes.push_back({name, values});
  grid.stacks = stacks;
  for (const spec::FieldValues& network : networks)
    grid.machines.push_back({mpc::with_fields(mpc::NetworkProfile{}, network),
                             mpc::with_fields(mpc::ComputeProfile{}, compute)});
  const py::gil_scoped_release release;
  return mpc::run_sweep(grid);
}

py::dict price_fields() {
  py::dict fields;
  for (const mpc::PriceField& field : mpc::price_fields())
    fields[py::str(field.name)] = field.largest;
  return fields;
}

}  // namespace

void bind_planning(py::module_& module) {
  py::class_<mpc::SweepResult>(module, "SweepResult", "One combination of a sweep.")
      .def_readonly("total", &mpc::SweepResult::total, "The cost of one pass.")
      .def_readonly("nanoseconds", &mpc::SweepResult::nanoseconds, "Per network, closed form.")
      .def_readonly("error", &mpc::SweepResult::error, "Why there is no such network, or empty.");
  module.def("simulate_generation", &simulate_generation, py::arg("network"), py::arg("stack"),
             py::kw_only(), py::arg("batch"), py::arg("new_tokens"), py::arg("sampling"),
             "Prompts and new tokens; see aero.mpc.simulate_generation.");
  module.def("sweep", &sweep, py::arg("specs"), py::arg("axes"), py::arg("stacks"),
             py::arg("networks"), py::arg("compute"), "Totals of a grid; see aero.mpc.sweep.");
  module.def(
      "quotable_names",
      [] {
        const auto& names = mpc::kQuotableNames;
        return std::vector<std::string_view>(names.begin(), names.end());
      },
      "The operations that a stack description can price.");
  module.def("price_fields", &price_fields, "Fields of a price with their largest values.");
}

}  // namespace aero::bindings
