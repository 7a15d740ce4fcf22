// The kernels for AVX2.
#include "kernels/cpu/compiled_kernels.h"

namespace aero::kernels::cpu {
const Kernels kAvx2 = compiled_kernels();
}  // namespace aero::kernels::cpu
