// How far dK is off in bfloat16 on an emulated GPU, the sharper the rows of attention are; for
// tests/python/test_cuda_sharp_rows.py. Prints for each deviation of q and k: the relative rms
// error of the tensor, and the largest relative error of single elements that are at least the
// tensor's rms, and at least a tenth of it.
#include <algorithm>
#include <cmath>
#include <cstdio>
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

void print_errors(double deviation) {
  AttentionProblem p({.type = DataType::kBFloat16,
                      .heads = 1,
                      .key_heads = 1,
                      .queries = 128,
                      .keys = 128,
                      .head_dim = 64,
                      .temperature = TemperatureKind::kNone,
                      .has_dentropy = false,
                      .has_dlogsumexp = false},
                     deviation);
  Trace trace;
  const auto forward = p.forward_params();
  const auto params = p.backward_params();
  Buffer<unsigned char, 64> workspace(static_cast<size_t>(RowTable::bytes(params)), 0xff);
  const BackwardParams backward{params, workspace.data()};
  run_pass<ForwardPass<ForwardShape<BFloat16, 64>>>(forward, trace);
  run_pass<BackwardRowsPass<BFloat16>>(backward, trace);
  run_pass<BackwardKeyPass<BackwardShape<BFloat16, 64>>>(backward, trace);
  const AttentionReference r(p);
  const std::vector<double> dk = p.dk.values();
  double norm = 0, largest[2] = {};
  for (const double x : r.dk) norm += x * x;
  const double rms = std::sqrt(norm / static_cast<double>(dk.size()));
  for (size_t n = 0; n < dk.size(); ++n)
    for (int m = 0; m < 2; ++m)
      if (std::abs(r.dk[n]) >= rms * (m == 0 ? 1 : 0.1))
        largest[m] = std::max(largest[m], std::abs(dk[n] / r.dk[n] - 1));
  std::printf("%g %.3f %.3f %.3f\n", deviation, relative_error(dk, r.dk), largest[0], largest[1]);
}

}  // namespace
}  // namespace aero::kernels::cuda::testing

int main() {
  try {
    for (const double deviation : {1.0, 2.0, 3.0, 4.0})
      aero::kernels::cuda::testing::print_errors(deviation);
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
