// The tables of scaled_ffn kernels, one per instruction set.
#pragma once

#include "kernels/scaled_ffn.h"

namespace aero::kernels::cpu {

/// Rows of dy, and of the weight, that one item takes: two reads of a weight row cost as much as
/// two rows of dy, so all items are alike.
inline constexpr int64_t kGradientRows = 128;
inline constexpr int64_t kWeightRows = 64;

struct ScaledFfnTable {
  /// y of the elements [first, last).
  void (*epilogue)(const ScaledFfnEpilogueParams& params, int64_t first, int64_t last);
  /// sums[c] = sum over the rows [first, last) of dy, [C] of float (double for kFloat64).
  void (*column_sums)(const ScaledFfnGradientParams& params, int64_t first, int64_t last,
                      void* sums);
  /// G becomes dW in the rows [first, last); products[i] = <G_i, W_i> and diagonal[i] = G_ii.
  void (*weight_rows)(const ScaledFfnGradientParams& params, int64_t first, int64_t last,
                      void* products, void* diagonal);
};

extern const ScaledFfnTable kScaledFfnScalar;
extern const ScaledFfnTable kScaledFfnAvx2;
extern const ScaledFfnTable kScaledFfnAvx512;
extern const ScaledFfnTable kScaledFfnAvx512Bf16;

}  // namespace aero::kernels::cpu
