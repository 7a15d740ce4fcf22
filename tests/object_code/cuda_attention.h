// Attention on an emulated GPU against the definitions, without a test framework; for the drivers
// that the deliberate errors of tests/python/test_cuda_mutations.py are compiled into.
#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <type_traits>
#include <vector>

#include "tests/cpp/kernels/cuda/attention_entropy_emulation.h"

namespace aero::kernels::cpu {

/// The problems ask how much scratch the CPU wants; its kernels are not linked here.
inline size_t partial_bytes(const AttentionEntropyForwardParams&) { return 0; }

}  // namespace aero::kernels::cpu

namespace aero::kernels::cuda::testing {

using namespace kernels::testing;

/// Whether all results of bfloat16 with D = 64 are right and nothing met a conflict or a mistake.
/// Calls backward(params, trace) for the backward direction, with `head_blocks` as given. kVaries:
/// by the passes that look for variants.
template <bool kVaries = false, class Backward>
bool is_right(const AttentionCase& c, int64_t head_blocks, Backward backward) {
  AttentionProblem p(c);
  Trace trace;
  using Shape = ForwardShape<BFloat16, 64>;
  using Forward = ForwardPass<std::conditional_t<kVaries, Varied<Shape>, Shape>>;
  run_pass<Forward>(p.forward_params(), trace);
  AttentionEntropyBackwardParams params = p.backward_params();
  params.head_blocks = head_blocks;
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(backward_bytes(params)), 0xff);
  const BackwardParams with_workspace{params, workspace.data()};
  run_pass<BackwardRowsPass<BFloat16, kVaries>>(with_workspace, trace);
  backward(with_workspace, trace);
  const AttentionReference reference(p);
  bool right = true;  // and no longer as soon as one error is not a number
  double worst = 0;
  const auto compare = [&](const Tensor& actual, const std::vector<double>& expected, double unit) {
    const double error = relative_error(actual.values(), expected) / unit;
    right = right && error <= 1;
    worst = std::max(worst, error);
  };
  for (const auto& [actual, expected] :
       {std::pair(&p.out, &reference.out), std::pair(&p.dq, &reference.dq),
        std::pair(&p.dk, &reference.dk), std::pair(&p.dv, &reference.dv)})
    compare(*actual, *expected, 4 * 0x1p-8);
  compare(p.entropy, reference.entropy, 1e-4);
  compare(p.dtemperature, reference.dtemperature, 1e-4);
  if (c.variant.has_sinks) compare(p.dsinks, reference.dsinks, 4 * 0x1p-8);
  if (c.variant.has_max_logits) compare(p.max_logits, reference.max_logits, 1e-4);
  const BankConflicts& met = trace.conflicts;
  std::printf("error %.2f of what is allowed, %ld conflicts\n", worst,
              static_cast<long>(met.matrices + met.loads + met.copies));
  return right && met.matrices + met.loads + met.copies == 0;
}

/// The status of a driver: 0 where all is right, 1 where something is wrong or throws.
template <class Check>
int status_of(Check all_is_right) {
  try {
    return all_is_right() ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}

}  // namespace aero::kernels::cuda::testing
