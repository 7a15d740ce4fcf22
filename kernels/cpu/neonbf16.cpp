// The kernels that NEON's instructions for bfloat16 change.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kNeonBf16 = bfloat16_kernels();
}  // namespace aero::kernels::cpu
