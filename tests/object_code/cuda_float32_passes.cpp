// Runs attention in float32 once on an emulated GPU, exact and with TF32, and compares with the
// definitions; what deliberate errors of tests/python/test_cuda_mutations.py are compiled into.
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

/// Both directions by the passes that the kernels would choose.
void run(AttentionProblem& p) {
  Trace trace;
  const auto forward = p.forward_params();
  const auto params = p.backward_params();
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(RowTable::bytes(params)), 0xff);
  const BackwardParams backward{params, workspace.data()};
  with_element(forward, [&]<class Element>(Element) {
    if constexpr (Element::kBytes == 4) {
      run_pass<ForwardPass<ForwardShape<Element, 32>>>(forward, trace);
      run_pass<BackwardRowsPass<Element>>(backward, trace);
      run_pass<BackwardQueryPass<BackwardShape<Element, 32>>>(backward, trace);
      run_pass<BackwardKeyPass<BackwardShape<Element, 32>>>(backward, trace);
    }
  });
}

std::vector<double> results_of(const AttentionProblem& p) {
  std::vector<double> all;
  for (const Tensor* result : {&p.out, &p.entropy, &p.dq, &p.dk, &p.dv, &p.dtemperature})
    for (const double value : result->values()) all.push_back(value);
  return all;
}

bool is_close(const AttentionProblem& p, double tolerance, double fine) {
  const AttentionReference r(p);
  bool right = true;
  const auto compare = [&](const Tensor& actual, const std::vector<double>& expected, double unit) {
    const double error = relative_error(actual.values(), expected) / unit;
    std::printf("error %.2f of what is allowed\n", error);
    right = right && error <= 1;
  };
  compare(p.out, r.out, tolerance);
  compare(p.dq, r.dq, tolerance);
  compare(p.dk, r.dk, tolerance);
  compare(p.dv, r.dv, tolerance);
  compare(p.entropy, r.entropy, fine);
  compare(p.dtemperature, r.dtemperature, fine);
  return right;
}

bool is_right() {
  AttentionCase c{.heads = 1, .key_heads = 1, .queries = 20, .keys = 40, .head_dim = 32};
  AttentionProblem p(c);
  round_to_tf32(p.dout);  // it is also used as it is
  run(p);
  if (!is_close(p, 4e-6, 1e-5)) return false;

  p.test.allow_tf32 = true;
  run(p);
  const std::vector<double> before = results_of(p);
  for (Tensor* input : {&p.q, &p.k, &p.v}) round_to_tf32(*input);
  run(p);
  const bool same = results_of(p) == before;
  std::printf("inputs with the digits of TF32 give %s bits\n", same ? "the same" : "other");
  return same && is_close(p, 4 * 0x1p-11, 1e-4);
}

}  // namespace
}  // namespace aero::kernels::cuda::testing

int main() {
  try {
    return aero::kernels::cuda::testing::is_right() ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
