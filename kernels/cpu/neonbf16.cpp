// The kernels that are others where NEON multiplies bfloat16.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kNeonBf16 = bfloat16_kernels();
}  // namespace aero::kernels::cpu
