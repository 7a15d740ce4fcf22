// The attention_entropy kernels for the tile registers of AMX, which multiply bfloat16 alone.
#include "kernels/cpu/attention_entropy_tables.h"
#include "kernels/cpu/attention_passes.h"
#include "kernels/cpu/table_of.h"

namespace aero::kernels::cpu {
namespace {

constexpr AttentionEntropyTable bfloat16_table() noexcept {
  constexpr auto type = static_cast<int>(DataType::kBFloat16);
  AttentionEntropyTable table{};
  table.forward[type] = kernel_of<AttentionEntropyForward<BFloat16, float>>();
  table.backward[type] = kernel_of<AttentionEntropyBackward<BFloat16, float>>();
  return table;
}

}  // namespace

const AttentionEntropyTable kAttentionEntropyAmx = bfloat16_table();

}  // namespace aero::kernels::cpu
