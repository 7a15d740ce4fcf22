// The backward pass's values for each row of the attention matrix, gathered once in scratch memory
// so that both of its passes read 32 bytes per row.
#pragma once

#include "kernels/cuda/attention_variants.h"
#include "kernels/cuda/elements.h"

namespace aero::kernels::cuda {

/// First half: the operands of weights.
struct alignas(16) RowWeights {
  float scale;        ///< of scores, times log2(e)
  float maximum;      ///< m
  float inverse_sum;  ///< 1 / l, 0 for a row that saw no key
  float offset;       ///< w
};
/// Second half: the operands of gradients of scores.
struct alignas(16) RowGradient {
  float dentropy;
  float center;  ///< dO . O - dlogsumexp
  float scale;   ///< of scores: their gradient times this is that of q . k
  float unused;
};

/// What is known of a row, 32 bytes.
struct RowValues {
  RowWeights weights;
  RowGradient gradient;
};

/// Those of all rows [B, H, T].
struct RowTable {
  RowValues* rows;

  AERO_DEVICE explicit RowTable(void* workspace) : rows(static_cast<RowValues*>(workspace)) {}

  static constexpr int64_t bytes(const AttentionEntropyParams& p) {
    return p.batch * p.heads * p.queries * static_cast<int64_t>(sizeof(RowValues));
  }
};

/// The params of the backward pass and its scratch memory.
struct BackwardParams : AttentionEntropyBackwardParams {
  void* workspace = nullptr;
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

/// That of a row's sink, a key of value 0. Where that alone has weight, logsumexp is its score and
/// entropy is 0; z is then the score in nats, so that dt takes in logsumexp.
template <class Lane, class Int>
AERO_DEVICE ScoreGradient sink_gradient(const Lane& lane, const AttentionEntropyBackwardParams& p,
                                        const Head<Int>& h, int query, const RowValues& row) {
  const float score = sink_score(p, h, temperature_of(p, h, query));
  const float x = score - row.weights.maximum;
  ScoreGradient of(lane, x < kHiddenScore ? kHiddenScore : x, 0.0f, row.weights, row.gradient);
  if (row.weights.inverse_sum != 0 || score <= kEmptyMaximum<float>) return of;
  const auto of_row = [&](const void* tensor) {
    return tensor ? static_cast<const float*>(tensor)[row_index(p, h, query)] : 0.0f;
  };
  of.dscore = of_row(p.dlogsumexp) - of_row(p.dentropy) * 0;
  of.z = static_cast<float>(kLn2) * score;
  return of;
}

/// What comes back to the largest score of a row, and the key that has it.
struct LargestGradient {
  float gradient = 0;
  int key = -1;

  /// `row` is one of [B, H, T].
  AERO_DEVICE LargestGradient(const AttentionEntropyBackwardParams& p, int64_t row, bool exists) {
    if (!p.dmax_logits || !exists) return;
    gradient = static_cast<const float*>(p.dmax_logits)[row];
    key = static_cast<int>(p.largest_key[row]);
  }
  AERO_DEVICE float at(int other_key) const { return key == other_key ? gradient : 0.0f; }
  AERO_DEVICE float of_row() const { return key < 0 ? 0.0f : gradient; }
};

/// x = score - maximum of a capped product, `kMaskedScore` for a hidden one, in units of log 2.
AERO_DEVICE float varied_score(float product, const RowWeights& row) {
  return product == kMaskedScore<float> ? kHiddenScore : product * row.scale - row.maximum;
}

/// Rows that are read as zeros where there is no dO: products with them are done all the same.
template <class Byte>
AERO_DEVICE TensorRows<Byte> if_dout(const AttentionEntropyBackwardParams& p,
                                     TensorRows<Byte> rows) {
  if (!p.dout) rows.end = 0;
  return rows;
}

/// Rows of dO; without it, zeros. Those of queries without weights are taken for zeros: inf and NaN
/// would not vanish in products with their weights, which are 0. Where there are none, nothing is
/// looked up.
template <class Shape, class Int>
AERO_DEVICE TensorRows<const char> dout_rows(const AttentionEntropyBackwardParams& p,
                                             const Head<Int>& head) {
  using Element = typename Shape::Element;
  auto rows = if_dout(p, query_rows<Element>(p, p.dout ? p.dout : p.q, head));
  const bool ends = Shape::kVaries ? p.ends() : p.is_causal;
  const bool has_sinks = Shape::kVaries && p.sinks;
  if (p.mask || (ends && p.queries > p.keys) || has_sinks)  // [B, H, 3, T]
    rows.sums = static_cast<const float*>(p.statistics) + kSavedStatistics * row_index(p, head, 0) +
                p.queries;
  return rows;
}

/// dO . O in an order of its own, always the same: eight lanes a row.
template <class Element_, bool kVaries = false>
struct BackwardRowsPass {
  using Element = Element_;
  using Params = BackwardParams;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kLanes = 8;
  static constexpr int kRows = kThreads / kLanes;

  static int64_t block_count(const Params& p) {
    return tiles_of(p.batch * p.heads * p.queries, kRows);
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const int64_t index = block * kRows + lane.thread / kLanes;
    const bool exists = index < p.batch * p.heads * p.queries;
    const int64_t row = exists ? index : 0;
    const Head<int64_t> head(p, row / p.queries);
    const auto query = static_cast<int>(row % p.queries);
    float center = p.dout ? dot(p, lane, head, query) : 0.0f;
    AERO_UNROLL
    for (int distance = 1; distance < kLanes; distance *= 2)
      center += lane.exchange(center, distance);
    if (!exists || lane.thread % kLanes != 0) return;

    const float* saved = static_cast<const float*>(p.statistics) + row +
                         row / p.queries * (kSavedStatistics - 1) * p.queries;
    const float sum = saved[p.queries], temperature = temperature_of(p, head, query);
    RowValues& values = RowTable(p.workspace).rows[row];
    if (p.dlogsumexp) center -= static_cast<const float*>(p.dlogsumexp)[row];
    values.weights = {row_scale(score_scale<kVaries>(p), temperature), saved[0],
                      sum == 0 ? 0.0f : 1 / sum, saved[2 * p.queries]};
    RowGradient gradient{};  // whatever comes back to a row that saw no key
    if (sum != 0)
      gradient = {p.dentropy ? static_cast<const float*>(p.dentropy)[row] : 0.0f, center,
                  row_scale(static_cast<float>(p.scale), temperature), 0.0f};
    values.gradient = gradient;
    if constexpr (kVaries)
      if (p.dsinks)
        static_cast<float*>(p.dsinks)[row] =
            sink_gradient(lane, p, head, query, values).dscore / temperature;
  }

 private:
  /// This lane's share of dO . O: every eighth chunk of 16 bytes.
  template <class Lane>
  AERO_DEVICE static float dot(const Params& p, const Lane& lane, const Head<int64_t>& head,
                               int query) {
    constexpr int kElements = 16 / Element::kBytes;
    const auto out = query_rows<Element>(p, p.out, head);
    const auto dout = query_rows<Element>(p, p.dout, head);
    const bool aligned = out.is_aligned() && dout.is_aligned();
    float sum = 0;
    for (int chunk = lane.thread % kLanes; chunk * kElements < p.head_dim; chunk += kLanes) {
      const char *a = out.chunk(query, chunk), *b = dout.chunk(query, chunk);
      const auto count = static_cast<int>(p.head_dim) - chunk * kElements;
      if (aligned && count >= kElements) {
        const Chunk x = *reinterpret_cast<const Chunk*>(a), y = *reinterpret_cast<const Chunk*>(b);
        AERO_UNROLL
        for (int n = 0; n < kElements; ++n)
          sum = __builtin_fmaf(element_of<Element, Lane>(x.words, n),
                               element_of<Element, Lane>(y.words, n), sum);
      } else {
        for (int n = 0; n < smaller(count, kElements); ++n)
          sum =
              __builtin_fmaf(element_of<Element, Lane>(a, n), element_of<Element, Lane>(b, n), sum);
      }
    }
    return sum;
  }
};

}  // namespace aero::kernels::cuda
