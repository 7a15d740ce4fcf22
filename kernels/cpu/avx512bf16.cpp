// The kernels for AVX-512 with products of bfloat16.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kAvx512Bf16 = compiled_kernels();
}  // namespace aero::kernels::cpu
