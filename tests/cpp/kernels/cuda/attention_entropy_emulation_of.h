// Included by one file per element type, which defines AERO_ELEMENT.
#include "tests/cpp/kernels/cuda/attention_entropy_emulation.h"

namespace aero::kernels::cuda::testing {

void run_emulated(AERO_ELEMENT, const AttentionEntropyForwardParams& params, Trace& trace) {
  with_forward_pass<AERO_ELEMENT>(
      params, [&](auto chosen) { run_pass<typename decltype(chosen)::Pass>(params, trace); });
}
void run_emulated(AERO_ELEMENT, const BackwardParams& params, Trace& trace) {
  for_backward_passes<AERO_ELEMENT>(
      params, [&](auto chosen) { run_pass<typename decltype(chosen)::Pass>(params, trace); });
}

}  // namespace aero::kernels::cuda::testing
