// The kernels that AVX-512's instructions for bfloat16 change.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kAvx512Bf16 = bfloat16_kernels();
}  // namespace aero::kernels::cpu
