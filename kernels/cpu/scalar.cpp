// The kernels for the plain machine.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kScalar = compiled_kernels();
}  // namespace aero::kernels::cpu
