// Runs the passes that look for variants once on an emulated GPU and compares with the definitions.
#include "tests/object_code/cuda_attention.h"

int main() {
  using namespace aero::kernels::cuda;
  using namespace aero::kernels::cuda::testing;
  AttentionCase windowed{.type = aero::kernels::DataType::kBFloat16, .heads = 1, .key_heads = 1};
  windowed.queries = 133, windowed.keys = 141, windowed.head_dim = 64, windowed.is_causal = false;
  windowed.variant = {.window_left = 41, .window_right = 9, .has_max_logits = true};
  AttentionCase capped = windowed;
  capped.queries = 37, capped.keys = 41, capped.head_dim = 40, capped.is_causal = true;
  capped.variant = {.softcap = 0.7, .dropout = 0.3, .has_sinks = true, .has_max_logits = true};
  const auto split = [](const BackwardParams& params, Trace& trace) {
    using Shape = Varied<BackwardShape<BFloat16, 64>>;
    run_pass<BackwardQueryPass<Shape>>(params, trace);
    run_pass<BackwardKeyPass<Shape>>(params, trace);
  };
  return status_of(
      [&] { return is_right<true>(windowed, 0, split) && is_right<true>(capped, 0, split); });
}
