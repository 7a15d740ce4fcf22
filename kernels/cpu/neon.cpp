// The kernels for NEON, which every 64-bit ARM has.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kNeon = compiled_kernels();
}  // namespace aero::kernels::cpu
