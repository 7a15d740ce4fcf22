// Runs the forward pass of attention and the split backward passes once on an emulated GPU and
// compares with the definitions.
#include "tests/object_code/cuda_attention.h"

int main() {
  using namespace aero::kernels::cuda;
  using namespace aero::kernels::cuda::testing;
  AttentionCase many_keys{.type = aero::kernels::DataType::kBFloat16, .heads = 1, .key_heads = 1};
  many_keys.queries = 20, many_keys.keys = 133, many_keys.head_dim = 64;
  AttentionCase masked = many_keys;
  masked.queries = 41, masked.keys = 37, masked.head_dim = 40, masked.mask = MaskKind::kFull;
  const auto split = [](const BackwardParams& params, Trace& trace) {
    using Shape = BackwardShape<BFloat16, 64>;
    run_pass<BackwardQueryPass<Shape>>(params, trace);
    run_pass<BackwardKeyPass<Shape>>(params, trace);
  };
  return status_of([&] { return is_right(many_keys, 0, split) && is_right(masked, 0, split); });
}
