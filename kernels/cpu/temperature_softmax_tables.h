// The tables of temperature_softmax kernels, one per instruction set.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cpu {

using TemperatureSoftmaxTable =
    KernelTable<TemperatureSoftmaxForwardParams, TemperatureSoftmaxBackwardParams>;

extern const TemperatureSoftmaxTable kTemperatureSoftmaxScalar;
extern const TemperatureSoftmaxTable kTemperatureSoftmaxAvx2;
extern const TemperatureSoftmaxTable kTemperatureSoftmaxAvx512;
extern const TemperatureSoftmaxTable kTemperatureSoftmaxAvx512Bf16;

}  // namespace aero::kernels::cpu
