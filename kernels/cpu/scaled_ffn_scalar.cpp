// The scaled_ffn kernels compiled for this instruction set.
#include "kernels/cpu/scaled_ffn_passes.h"

namespace aero::kernels::cpu {

const ScaledFfnTable kScaledFfnScalar = kTable;

}  // namespace aero::kernels::cpu
