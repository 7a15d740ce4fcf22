// What the two passes of attention's backward direction have in common: sizes of tiles, their place
// in shared memory, and the gradient of one score.
#pragma once

#include "kernels/cuda/attention_backward_rows.h"

namespace aero::kernels::cuda {

/// Sizes of tiles, by the bytes of a row; see ForwardShape.
template <class Element_, int kWidth_>
struct BackwardShape {
  using Element = Element_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kRowBytes = kWidth * Element::kBytes;
  static constexpr int kWarps = kRowBytes <= 512 ? 4 : 2;
  static constexpr int kStaying = 16 * kWarps;
  static constexpr int kStreamed = kRowBytes <= 128 ? 64 : kRowBytes <= 256 ? 32 : 16;
  static constexpr int kStages = kRowBytes <= 512 ? 2 : 1;
  static constexpr bool kInRegisters = kRowBytes <= 128;
  /// Blocks that share the columns of dK and dV: all of them would not fit in the registers.
  static constexpr int kParts = kWidth <= 128 ? 1 : 2;
};

/// What x = score - maximum is for a hidden key: 2^-2000 is 0, and z stays finite, for 0 times its
/// product with a huge gradient has to be 0.
inline constexpr float kHiddenScore = -2000;

/// The weight and the gradient of one score.
struct ScoreGradient {
  float weight, dscore, z;

  template <class Lane>
  AERO_DEVICE ScoreGradient(const Lane&, float x, float dweight, const RowWeights& row,
                            const RowGradient& gradient) {
    weight = Lane::exp2(x) * row.inverse_sum;
    z = __builtin_fmaf(x, static_cast<float>(kLn2), row.offset);
    dscore = weight * (__builtin_fmaf(-gradient.dentropy, z, dweight) - gradient.center);
  }
};

/// Shared memory of both passes: stages of two tiles that stream by (and what belongs to them), and
/// two tiles that stay. Those that go on to registers come in where the second stage will be.
template <class Shape, int kExtraBytes>
struct BackwardMemory {
  static constexpr int kTileBytes = Shape::kStreamed * Shape::kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes + kExtraBytes;
  static constexpr int kStayingBase = kStageBytes * (Shape::kInRegisters ? 1 : Shape::kStages);
  static constexpr int kStayingBytes = Shape::kStaying * Shape::kRowBytes;
  static constexpr int kSharedBytes =
      largest(kStageBytes * Shape::kStages, kStayingBase + 2 * kStayingBytes);
  using Rows = SharedRows<Shape::kRowBytes>;

  AERO_DEVICE static Rows first(int stage) { return {stage * kStageBytes}; }
  AERO_DEVICE static Rows second(int stage) { return {stage * kStageBytes + kTileBytes}; }
  AERO_DEVICE static int extra(int stage) { return stage * kStageBytes + 2 * kTileBytes; }
  AERO_DEVICE static Rows first_staying() { return {kStayingBase}; }
  AERO_DEVICE static Rows second_staying() { return {kStayingBase + kStayingBytes}; }
};

}  // namespace aero::kernels::cuda
