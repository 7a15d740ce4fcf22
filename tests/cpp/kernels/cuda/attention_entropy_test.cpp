// The CUDA passes of attention on an emulated GPU, against the definitions in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_checks.h"
#include "tests/cpp/kernels/cuda/attention_entropy_emulation.h"

namespace aero::kernels::cuda::testing {
namespace {

using namespace kernels::testing;  // the problems and their reference

const std::vector<DataType> kTypes = {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32};

void expect_emulation_matches(const AttentionCase& c) {
  SCOPED_TRACE(c.describe());
  AttentionProblem p(c);
  ASSERT_NO_THROW(run_emulated(p.forward_params()));
  const AttentionReference reference(p);
  const double fine = entropy_tolerance(c);
  const double tolerance = std::max(product_tolerance(c.type), fine / 4);
  expect_close("out", p.out.values(), reference.out, tolerance);
  expect_close("entropy", p.entropy.values(), reference.entropy, fine);
  for (size_t i = 0; i < reference.logsumexp.size(); ++i) {
    const double actual = p.logsumexp.values()[i], expected = reference.logsumexp[i];
    if (std::isinf(expected))
      EXPECT_EQ(actual, expected) << "logsumexp of row " << i;
    else
      EXPECT_NEAR(actual, expected, fine * (1 + std::abs(expected))) << "logsumexp of row " << i;
  }
  ASSERT_NO_THROW(run_emulated(p.backward_params()));
  expect_close("dq", p.dq.values(), reference.dq, tolerance);
  expect_close("dk", p.dk.values(), reference.dk, tolerance);
  expect_close("dv", p.dv.values(), reference.dv, tolerance);
  expect_close("dtemperature", p.dtemperature.values(), reference.dtemperature, fine);
}

TEST(CudaAttentionEntropy, AgreesWithTheDefinitionsOverAwkwardSizes) {
  for (const DataType type : kTypes)
    for (const bool is_causal : {false, true})
      for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {1, 67}, {13, 13}, {17, 40}, {40, 17}, {64, 64}, {67, 131}, {131, 131}}) {
        AttentionCase c{.type = type, .heads = 1, .key_heads = 1, .queries = queries, .keys = keys};
        c.head_dim = 64, c.is_causal = is_causal;
        expect_emulation_matches(c);
      }
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
