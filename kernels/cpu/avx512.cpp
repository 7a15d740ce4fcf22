// The kernels for AVX-512.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kAvx512 = compiled_kernels();
}  // namespace aero::kernels::cpu
