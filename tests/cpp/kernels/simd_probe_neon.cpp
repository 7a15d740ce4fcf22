// simd.h compiled for this instruction set.
#include "tests/cpp/kernels/simd_probe_of.h"

namespace aero::kernels::testing {
const SimdProbe kSimdNeon = simd_probe();
}  // namespace aero::kernels::testing
