// The entropy_regularization kernels compiled for this instruction set.
#include "kernels/cpu/entropy_regularization_passes.h"

namespace aero::kernels::cpu {

const EntropyRegularizationTable kEntropyRegularizationAvx2 = {entropy_kernels<float>(),
                                                               entropy_kernels<double>()};

}  // namespace aero::kernels::cpu
