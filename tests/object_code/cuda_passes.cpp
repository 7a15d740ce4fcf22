// Runs the passes of attention once on an emulated GPU and compares with the definitions; what the
// deliberate errors of tests/python/test_cuda_mutations.py are compiled into.
#include <cstdio>
#include <exception>

#include "tests/cpp/kernels/cuda/attention_entropy_emulation.h"

namespace aero::kernels::cpu {

/// The problems ask how much scratch the CPU wants; its kernels are not linked here.
size_t partial_bytes(const AttentionEntropyForwardParams&) { return 0; }

}  // namespace aero::kernels::cpu

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;

/// Whether all results of bfloat16 with D = 64 are right and nothing met a conflict or a mistake.
bool is_right(const AttentionCase& c) {
  AttentionProblem p(c);
  Trace trace;
  run_pass<ForwardPass<ForwardShape<BFloat16, 64>>>(p.forward_params(), trace);
  const auto params = p.backward_params();
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(RowTable::bytes(params)), 0xff);
  const BackwardParams backward{params, workspace.data()};
  using Shape = BackwardShape<BFloat16, 64>;
  run_pass<BackwardRowsPass<BFloat16>>(backward, trace);
  run_pass<BackwardQueryPass<Shape>>(backward, trace);
  run_pass<BackwardKeyPass<Shape>>(backward, trace);
  const AttentionReference reference(p);
  double worst = 0;
  const auto compare = [&](const Tensor& actual, const std::vector<double>& expected, double unit) {
    const double error = relative_error(actual.values(), expected) / unit;
    if (!(error <= worst)) worst = error;
  };
  for (const auto& [actual, expected] :
       {std::pair(&p.out, &reference.out), std::pair(&p.dq, &reference.dq),
        std::pair(&p.dk, &reference.dk), std::pair(&p.dv, &reference.dv)})
    compare(*actual, *expected, 4 * 0x1p-8);
  compare(p.entropy, reference.entropy, 1e-4);
  compare(p.dtemperature, reference.dtemperature, 1e-4);
  const BankConflicts& met = trace.conflicts;
  std::printf("error %.2f of what is allowed, %ld conflicts\n", worst,
              static_cast<long>(met.matrices + met.loads + met.copies));
  return worst <= 1 && met.matrices + met.loads + met.copies == 0;
}

}  // namespace
}  // namespace aero::kernels::cuda::testing

int main() {
  using namespace aero::kernels;
  using namespace aero::kernels::testing;
  AttentionCase many_keys{.type = DataType::kBFloat16, .heads = 1, .key_heads = 1};
  many_keys.queries = 20, many_keys.keys = 133, many_keys.head_dim = 64;
  AttentionCase masked{.type = DataType::kBFloat16, .heads = 1, .key_heads = 1};
  masked.queries = 41, masked.keys = 37, masked.head_dim = 40, masked.mask = MaskKind::kFull;
  try {
    return cuda::testing::is_right(many_keys) && cuda::testing::is_right(masked) ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
