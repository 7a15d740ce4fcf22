// Runs the forward pass of attention and the backward pass that does whole heads once on an
// emulated GPU and compares with the definitions.
#include "tests/object_code/cuda_attention.h"

int main() {
  using namespace aero::kernels::cuda;
  using namespace aero::kernels::cuda::testing;
  // Two heads that share keys; queries of whose tiles the last key is the 128th; the diagonal.
  AttentionCase shared{.type = aero::kernels::DataType::kBFloat16, .heads = 2, .key_heads = 1};
  shared.queries = shared.keys = 130, shared.head_dim = 64;
  // Three tiles of keys, and those before the last hidden from nobody.
  AttentionCase many_keys{.type = aero::kernels::DataType::kBFloat16, .heads = 1, .key_heads = 1};
  many_keys.queries = 20, many_keys.keys = 270, many_keys.head_dim = 40;
  const auto heads = [](const BackwardParams& params, Trace& trace) {
    run_pass<BackwardHeadPass<HeadShape<BFloat16, 64>>>(params, trace);
  };
  return status_of([&] { return is_right(shared, 1, heads) && is_right(many_keys, 1, heads); });
}
