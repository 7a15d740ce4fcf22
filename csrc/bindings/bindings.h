// The parts of the Python module `_core`, one function per file.
#pragma once

#include <pybind11/pybind11.h>

namespace aero::bindings {

void bind_architecture(pybind11::module_& module);
void bind_build_info(pybind11::module_& module);
void bind_cost(pybind11::module_& module);
void bind_fixed_point(pybind11::module_& module);
void bind_latency(pybind11::module_& module);
void bind_mpc(pybind11::module_& module);
void bind_network(pybind11::module_& module);
void bind_planning(pybind11::module_& module);

}  // namespace aero::bindings
