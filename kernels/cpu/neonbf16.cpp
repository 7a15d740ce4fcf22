// The kernels for NEON with products of bfloat16.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kNeonBf16 = compiled_kernels();
}  // namespace aero::kernels::cpu
