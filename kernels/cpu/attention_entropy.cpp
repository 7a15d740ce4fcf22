// Attention with temperature and entropy on the CPU: picks the kernels of the instruction set in
// use.
#include "kernels/attention_entropy.h"

#include "kernels/cpu/attention_entropy_isa.h"
#include "kernels/cpu/dispatch.h"

namespace aero::kernels::cpu {
namespace {

const AttentionEntropyKernels& kernels() {
  switch (isa()) {
    case Isa::kScalar:
      return kAttentionEntropyScalar;
    case Isa::kAvx2:
      return kAttentionEntropyAvx2;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return kAttentionEntropyAvx512;
  }
  return kAttentionEntropyScalar;
}

const auto& kernel(const AttentionEntropyForwardParams& params) {
  return kernels().forward[static_cast<int>(params.data_type)];
}
const auto& kernel(const AttentionEntropyBackwardParams& params) {
  return kernels().backward[static_cast<int>(params.data_type)];
}

/// Scratch of one thread, in whole cache lines so that threads share none.
template <class Params>
size_t scratch_bytes(const Params& params) {
  return (static_cast<size_t>(kernel(params).scratch_bytes(params)) + 63) / 64 * 64;
}

template <class Params>
void run_items(const Params& params, void* workspace, int64_t first, int64_t last, int64_t thread) {
  char* scratch =
      static_cast<char*>(workspace) + scratch_bytes(params) * static_cast<size_t>(thread);
  kernel(params).run(params, scratch, first, last);
}

}  // namespace

size_t workspace_bytes(const AttentionEntropyForwardParams& params, int64_t threads) {
  return scratch_bytes(params) * static_cast<size_t>(threads);
}
size_t workspace_bytes(const AttentionEntropyBackwardParams& params, int64_t threads) {
  return scratch_bytes(params) * static_cast<size_t>(threads);
}

int64_t item_count(const AttentionEntropyForwardParams& params) {
  return kernel(params).item_count(params);
}
int64_t item_count(const AttentionEntropyBackwardParams& params) {
  return kernel(params).item_count(params);
}

void run(const AttentionEntropyForwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(params, workspace, first, last, thread);
}
void run(const AttentionEntropyBackwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(params, workspace, first, last, thread);
}

}  // namespace aero::kernels::cpu
