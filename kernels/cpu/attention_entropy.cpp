// Attention with temperature and entropy on the CPU: picks the kernels of the instruction set in
// use.
#include "kernels/attention_entropy.h"

#include "kernels/cpu/attention_entropy_tables.h"

namespace aero::kernels::cpu {
namespace {

const AttentionEntropyTable& table() {
  return table_in_use({&kAttentionEntropyScalar, &kAttentionEntropyAvx2, &kAttentionEntropyAvx512,
                       &kAttentionEntropyAvx512Bf16});
}

}  // namespace

size_t workspace_bytes(const AttentionEntropyForwardParams& params, int64_t threads) {
  return scratch_bytes(table().of(params), params) * static_cast<size_t>(threads);
}
size_t workspace_bytes(const AttentionEntropyBackwardParams& params, int64_t threads) {
  return scratch_bytes(table().of(params), params) * static_cast<size_t>(threads);
}

int64_t item_count(const AttentionEntropyForwardParams& params) {
  return table().of(params).item_count(params);
}
int64_t item_count(const AttentionEntropyBackwardParams& params) {
  return table().of(params).item_count(params);
}

void run(const AttentionEntropyForwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(table().of(params), params, workspace, first, last, thread);
}
void run(const AttentionEntropyBackwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(table().of(params), params, workspace, first, last, thread);
}

}  // namespace aero::kernels::cpu
