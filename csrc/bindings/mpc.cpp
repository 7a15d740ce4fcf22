#include "csrc/bindings/bindings.h"

namespace aero::bindings {

void bind_mpc(pybind11::module_&) {}

}  // namespace aero::bindings
