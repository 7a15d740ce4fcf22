// Calls of attention on an emulated GPU against the definitions in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpp/kernels/attention_entropy_checks.h"
#include "tests/cpp/kernels/cuda/attention_entropy_emulation.h"

namespace aero::kernels::cuda::testing {

using namespace kernels::testing;  // the problems and their reference

/// What tensors hold and how it is multiplied.
struct Elements {
  DataType type;
  bool allow_tf32 = false;
};

/// How a product sees its operands. TF32 has the digits of float16.
inline DataType seen_type(const AttentionCase& c) {
  return c.allow_tf32 ? DataType::kFloat16 : c.type;
}

/// Norm-relative error allowed for out, dq, dk and dv. As on the CPU, but that sums of products of
/// float32 are rounded toward zero three times per step of 8, each time by half of 2^-23 on
/// average: over the D / 8 steps of a score, and those of a tile of up to 64 rows. Sums over tiles
/// are ordinary, so S and T are not in it. Where a row has one key, dP and dO . O cancel and their
/// errors remain.
inline double tolerance_of(const AttentionCase& c) {
  if (seen_type(c) != DataType::kFloat32) return product_tolerance(seen_type(c));
  const double roundings = 3 * static_cast<double>(c.head_dim + 64) / 8;
  const bool has_one_key =
      c.keys == 1 || (c.variant.window_left == 0 && (c.is_causal || c.variant.window_right == 0));
  return (product_tolerance(c.type) + roundings * 0x1p-24) * (has_one_key ? 8 : 1);
}

/// Forgets the gradients of another call.
inline void clear_gradients(AttentionProblem& p) {
  for (Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature, &p.dsinks})
    gradient->fill(std::numeric_limits<double>::quiet_NaN());
}

/// The numbers of blocks to try for whole heads: none, and two where there is such a pass.
inline std::vector<int64_t> head_blocks_of(const AttentionEntropyBackwardParams& p) {
  const int64_t blocks = std::min<int64_t>(2, head_blocks_for(p, 100, BackwardScheme::kHeads));
  return blocks == 0 ? std::vector<int64_t>{0} : std::vector<int64_t>{0, blocks};
}

/// With TF32 for inputs that have its digits; others are as good as rounded before
/// (TensorFloat32SeesItsDigitsOfEveryInput).
inline void expect_emulation_matches(const AttentionCase& c) {
  SCOPED_TRACE(c.describe());
  AttentionProblem p(c);
  if (c.allow_tf32)
    for (Tensor* input : {&p.q, &p.k, &p.v, &p.dout}) round_to_tf32(*input);
  std::vector<Trace> traces(1);
  EXPECT_NO_THROW(traces[0] = run_emulated(p.forward_params()));
  const AttentionReference reference(p);
  AttentionCase seen = c;
  seen.type = seen_type(c);
  const double fine = entropy_tolerance(seen);
  const double tolerance = std::max(tolerance_of(c), fine / 4);
  expect_results(p, reference, tolerance, fine);
  for (const int64_t head_blocks : head_blocks_of(p.backward_params())) {
    SCOPED_TRACE("blocks of whole heads: " + std::to_string(head_blocks));
    clear_gradients(p);
    AttentionEntropyBackwardParams params = p.backward_params();
    params.head_blocks = head_blocks;
    EXPECT_NO_THROW(traces.push_back(run_emulated(params)));
    expect_gradients(p, reference, tolerance, fine);
  }
  // What is read most goes through the banks without conflicts, whatever the sizes.
  for (const Trace& trace : traces) {
    EXPECT_EQ(trace.conflicts.matrices, 0);
    EXPECT_EQ(trace.conflicts.loads, 0);
    EXPECT_EQ(trace.conflicts.copies, 0);
  }
}

inline AttentionCase one_head(Elements elements, int64_t queries, int64_t keys, int64_t head_dim) {
  return {.type = elements.type,
          .heads = 1,
          .key_heads = 1,
          .queries = queries,
          .keys = keys,
          .head_dim = head_dim,
          .allow_tf32 = elements.allow_tf32};
}

}  // namespace aero::kernels::cuda::testing
