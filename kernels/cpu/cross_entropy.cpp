// Cross entropy on the CPU: picks the kernel of the instruction set in use.
#include "kernels/cross_entropy.h"

#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

const auto& kernel_for(const CrossEntropyParams& params) {
  return kernels_in_use().cross_entropy[static_cast<int>(params.data_type)];
}

}  // namespace

size_t workspace_bytes(const CrossEntropyParams& params, int64_t threads) {
  return scratch_bytes(kernel_for(params), params) * static_cast<size_t>(threads);
}

int64_t item_count(const CrossEntropyParams& params) {
  return kernel_for(params).item_count(params);
}

void run(const CrossEntropyParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(kernel_for(params), params, workspace, first, last, thread);
}

}  // namespace aero::kernels::cpu
