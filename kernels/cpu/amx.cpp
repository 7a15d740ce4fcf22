// The kernels for the tile registers of AMX, which multiply bfloat16 alone.
#include "kernels/cpu/attention_passes.h"
#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

constexpr Kernels bfloat16_kernels() noexcept {
  constexpr auto type = static_cast<int>(DataType::kBFloat16);
  Kernels kernels{};
  kernels.attention_entropy.forward[type] = kernel_of<AttentionEntropyForward<BFloat16, float>>();
  kernels.attention_entropy.backward[type] = kernel_of<AttentionEntropyBackward<BFloat16, float>>();
  return kernels;
}

}  // namespace

const Kernels kAmx = bfloat16_kernels();

}  // namespace aero::kernels::cpu
