// The kernels that are others where AVX-512 multiplies bfloat16.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kAvx512Bf16 = bfloat16_kernels();
}  // namespace aero::kernels::cpu
