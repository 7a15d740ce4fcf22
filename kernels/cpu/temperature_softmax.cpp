// Softmax with temperature and entropy on the CPU: picks the kernels of the instruction set in use.
#include "kernels/temperature_softmax.h"

#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

template <class Params>
const auto& kernel_for(const Params& params) {
  return kernels_in_use().temperature_softmax.of(params);
}

}  // namespace

size_t workspace_bytes(const TemperatureSoftmaxForwardParams& params, int64_t threads) {
  return scratch_bytes(kernel_for(params), params) * static_cast<size_t>(threads);
}
size_t workspace_bytes(const TemperatureSoftmaxBackwardParams& params, int64_t threads) {
  return scratch_bytes(kernel_for(params), params) * static_cast<size_t>(threads);
}

int64_t item_count(const TemperatureSoftmaxForwardParams& params) {
  return kernel_for(params).item_count(params);
}
int64_t item_count(const TemperatureSoftmaxBackwardParams& params) {
  return kernel_for(params).item_count(params);
}

void run(const TemperatureSoftmaxForwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread) {
  run_items(kernel_for(params), params, workspace, first, last, thread);
}
void run(const TemperatureSoftmaxBackwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread) {
  run_items(kernel_for(params), params, workspace, first, last, thread);
}

}  // namespace aero::kernels::cpu
