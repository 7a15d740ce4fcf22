// A row of temperature_softmax: its place, its keys, and the scale of its scores.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/online_softmax.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cuda {
namespace {  // as in online_softmax.h

// Below 2^-2000 a weight is 0 whatever x is; the bound keeps 0 * x from becoming 0 * inf.
inline constexpr float kLowestExponent = -2000;

/// Scores are taken times the sign of the temperature, so that the highest has the most weight, and
/// over a huge temperature times log2(e) / t, so that those of -inf stay.
template <class Element, class Lane>
struct SoftmaxRow {
  // Beyond this log2(e) / t is no normal number.
  static constexpr float kHuge = 0x1p126f;

  const TemperatureSoftmaxParams& params;
  int64_t batch, head, query;
  int keys;           ///< of the row
  int visible;        ///< those that the causal rule shows
  const bool* mask;   ///< of key 0, or null
  float temperature;  ///< t
  float direction;    ///< first factor of scores
  float factor;       ///< second factor; with direction log2(e) / t
  float unit;         ///< scores taken so are nats times this

  AERO_DEVICE SoftmaxRow(const TemperatureSoftmaxParams& p, int64_t index)
      : params(p),
        batch(index / p.queries / p.heads),
        head(index / p.queries % p.heads),
        query(index % p.queries),
        keys(static_cast<int>(p.keys)),
        visible(keys),
        mask(nullptr),
        temperature(1) {
    if (p.is_causal)
      visible = at_least_zero(smaller(keys, static_cast<int>(query + p.keys - p.queries + 1)));
    if (p.mask) mask = p.mask.data + offset(p.mask.strides);
    if (p.temperature)
      temperature = static_cast<const float*>(p.temperature.data)[offset(p.temperature.strides)];
    const float size = __builtin_fabsf(temperature);
    const bool is_huge = size > kHuge;
    unit = is_huge ? static_cast<float>(kLog2E) : size;
    direction = is_huge ? unit / temperature : temperature < 0 ? -1.0f : 1.0f;
    factor = is_huge ? 1.0f : row_scale(static_cast<float>(kLog2E), size);
  }

  AERO_DEVICE int64_t offset(const Strides& s) const {
    return batch * s.batch + head * s.head + query * s.row;
  }
  /// This row of a [B, H, T, S] tensor.
  AERO_DEVICE const char* of(const TensorView<const void>& tensor) const {
    return static_cast<const char*>(tensor.data) + offset(tensor.strides) * Element::kBytes;
  }
  AERO_DEVICE char* of(const TensorView<void>& tensor) const {
    return static_cast<char*>(tensor.data) + offset(tensor.strides) * Element::kBytes;
  }
  /// Index of the row's r in [B, H, 3, T].
  AERO_DEVICE int64_t saved() const {
    return (batch * params.heads + head) * kSavedStatistics * params.queries + query;
  }

  /// Scores of the keys from `first` on; those that are not seen are infinitely low.
  AERO_DEVICE void load_scores(uint32_t (&words)[4], const char* row, int first) const {
    const uint32_t hidden = bits_of<Element, Lane>(-__builtin_inff());
    load_chunk<Element>(words, row, first, keys, hidden);
    hide(words, first, hidden);
    if (direction == 1) return;
    AERO_UNROLL
    for (int n = 0; n < kChunkElements<Element>; ++n) {
      const float score = element_of<Element, Lane>(words, n);
      if (score != -__builtin_inff())  // + NaN where it is +inf
        set_element<Element>(words, n, bits_of<Element, Lane>(score * direction + (score - score)));
    }
  }
  /// The gradients of the keys from `first` on; nothing to those that are not seen.
  AERO_DEVICE void load_gradients(uint32_t (&words)[4], const char* row, int first) const {
    load_chunk<Element>(words, row, first, keys, 0);
    hide(words, first, 0);
  }

  AERO_DEVICE float score(const uint32_t (&words)[4], int n) const {
    return element_of<Element, Lane>(words, n);
  }
  /// x = log2(e) / t (score - r): the difference comes first, so that x keeps its digits however
  /// large the scores are, and is exactly 0 at r. NaN stays.
  AERO_DEVICE float exponent(float score, float top) const {
    const float x = (score - top) * factor;
    return x < kLowestExponent ? kLowestExponent : x;
  }

 private:
  AERO_DEVICE void hide(uint32_t (&words)[4], int first, uint32_t bits) const {
    if (!mask && first + kChunkElements<Element> <= visible) return;
    const int64_t stride = params.mask.strides.column;
    AERO_UNROLL
    for (int n = 0; n < kChunkElements<Element>; ++n)
      if (first + n >= visible || (mask && !mask[(first + n) * stride]))
        set_element<Element>(words, n, bits);
  }
};

}  // namespace
}  // namespace aero::kernels::cuda
