// Fills the table of attention_entropy_isa.h with the kernels as compiled in the including file.
#pragma once

#include "kernels/cpu/attention_entropy_backward.h"
#include "kernels/cpu/attention_entropy_forward.h"
#include "kernels/cpu/attention_entropy_isa.h"

namespace aero::kernels::cpu {
namespace {

template <class Pass>
constexpr AttentionKernel<typename Pass::Params> entry() {
  return {Pass::scratch_bytes, Pass::item_count, Pass::run};
}

// In the order of DataType.
constexpr AttentionEntropyKernels attention_entropy_kernels() {
  return {{entry<AttentionEntropyForward<float, float>>(),
           entry<AttentionEntropyForward<BFloat16, float>>(),
           entry<AttentionEntropyForward<Float16, float>>(),
           entry<AttentionEntropyForward<double, double>>()},
          {entry<AttentionEntropyBackward<float, float>>(),
           entry<AttentionEntropyBackward<BFloat16, float>>(),
           entry<AttentionEntropyBackward<Float16, float>>(),
           entry<AttentionEntropyBackward<double, double>>()}};
}

}  // namespace
}  // namespace aero::kernels::cpu
