#include "csrc/bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Architectures and private-inference cost in C++; imports without torch.";
  aero::bindings::bind_architecture(module);
  aero::bindings::bind_cost(module);
  aero::bindings::bind_network(module);
  aero::bindings::bind_mpc(module);
  aero::bindings::bind_planning(module);
  aero::bindings::bind_latency(module);
  aero::bindings::bind_fixed_point(module);
  aero::bindings::bind_build_info(module);
}
