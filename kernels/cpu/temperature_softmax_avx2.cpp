// The temperature_softmax kernels compiled for this instruction set.
#include "kernels/cpu/table_of.h"
#include "kernels/cpu/temperature_softmax_passes.h"
#include "kernels/cpu/temperature_softmax_tables.h"

namespace aero::kernels::cpu {

const TemperatureSoftmaxTable kTemperatureSoftmaxAvx2 =
    table_of<TemperatureSoftmaxForward, TemperatureSoftmaxBackward>();

}  // namespace aero::kernels::cpu
