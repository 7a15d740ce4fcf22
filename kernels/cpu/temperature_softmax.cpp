// Softmax with temperature and entropy on the CPU: picks the kernels of the instruction set in use.
#include "kernels/temperature_softmax.h"

#include "kernels/cpu/temperature_softmax_tables.h"

namespace aero::kernels::cpu {
namespace {

const TemperatureSoftmaxTable& table() {
  return table_in_use({&kTemperatureSoftmaxScalar, &kTemperatureSoftmaxAvx2,
                       &kTemperatureSoftmaxAvx512, &kTemperatureSoftmaxAvx512Bf16});
}

}  // namespace

size_t workspace_bytes(const TemperatureSoftmaxForwardParams& params, int64_t threads) {
  return scratch_bytes(table().of(params), params) * static_cast<size_t>(threads);
}
size_t workspace_bytes(const TemperatureSoftmaxBackwardParams& params, int64_t threads) {
  return scratch_bytes(table().of(params), params) * static_cast<size_t>(threads);
}

int64_t item_count(const TemperatureSoftmaxForwardParams& params) {
  return table().of(params).item_count(params);
}
int64_t item_count(const TemperatureSoftmaxBackwardParams& params) {
  return table().of(params).item_count(params);
}

void run(const TemperatureSoftmaxForwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread) {
  run_items(table().of(params), params, workspace, first, last, thread);
}
void run(const TemperatureSoftmaxBackwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread) {
  run_items(table().of(params), params, workspace, first, last, thread);
}

}  // namespace aero::kernels::cpu
