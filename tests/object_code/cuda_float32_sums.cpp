// How far float32 attention on an emulated GPU is from the definitions, by how many rows it sums;
// for tests/python/test_cuda_float32_sums.py.
//
//   driver D N D N ...    prints for each pair the relative rms errors of out and dQ, sums over N
//                         keys, and of dK and dV, sums over N queries
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "kernels/cuda/attention_entropy_passes.h"
#include "tests/cpp/kernels/attention_entropy_reference.h"
#include "tests/cpp/kernels/cuda/emulation.h"

namespace aero::kernels::cpu {

/// The problems ask how much scratch the CPU wants; its kernels are not linked here.
size_t partial_bytes(const AttentionEntropyForwardParams&) { return 0; }

}  // namespace aero::kernels::cpu

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;

/// Sixteen rows are what a warp owns.
constexpr int64_t kFew = 16;

struct Errors {
  double out, dq, dk, dv;
};

AttentionProblem problem_of(int64_t queries, int64_t keys, int64_t head_dim) {
  return AttentionProblem({.heads = 1,
                           .key_heads = 1,
                           .queries = queries,
                           .keys = keys,
                           .head_dim = head_dim,
                           .is_causal = false});
}

/// Both directions; a null gradient is not computed.
void run(const AttentionEntropyForwardParams& forward, const AttentionEntropyBackwardParams& p) {
  Trace trace;
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(RowTable::bytes(p)), 0xff);
  const BackwardParams backward{p, workspace.data()};
  with_forward_pass<Float32>(
      forward, [&](auto chosen) { run_pass<typename decltype(chosen)::Pass>(forward, trace); });
  for_backward_passes<Float32>(
      backward, [&](auto chosen) { run_pass<typename decltype(chosen)::Pass>(backward, trace); });
}

Errors errors_of(int64_t head_dim, int64_t summed) {
  Errors errors{};
  {
    AttentionProblem p = problem_of(kFew, summed, head_dim);
    AttentionEntropyBackwardParams backward = p.backward_params();
    backward.dk = backward.dv = {};
    run(p.forward_params(), backward);
    const AttentionReference r(p);
    errors.out = relative_error(p.out.values(), r.out);
    errors.dq = relative_error(p.dq.values(), r.dq);
  }
  AttentionProblem p = problem_of(summed, kFew, head_dim);
  AttentionEntropyBackwardParams backward = p.backward_params();
  backward.dq = {}, backward.dtemperature = nullptr;
  run(p.forward_params(), backward);
  const AttentionReference r(p);
  errors.dk = relative_error(p.dk.values(), r.dk);
  errors.dv = relative_error(p.dv.values(), r.dv);
  return errors;
}

}  // namespace
}  // namespace aero::kernels::cuda::testing

int main(int count, char** arguments) {
  try {
    for (int n = 1; n + 1 < count; n += 2) {
      const auto e = aero::kernels::cuda::testing::errors_of(std::atoll(arguments[n]),
                                                             std::atoll(arguments[n + 1]));
      std::printf("%s %s %.2e %.2e %.2e %.2e\n", arguments[n], arguments[n + 1], e.out, e.dq, e.dk,
                  e.dv);
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
