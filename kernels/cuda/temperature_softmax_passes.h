// Softmax with temperature and entropy, both directions: a warp or a block owns a row, a lane every
// 32nd (256th) chunk of it. Equations: ../online_softmax.h.
//
// Bytes moved are the least there can be for rows of up to kSegment keys, which stay in registers
// as they were read, and weights are computed where they are used. Longer rows are read a second
// time.
#pragma once

#include "kernels/cuda/row_team.h"
#include "kernels/cuda/temperature_softmax_rows.h"

namespace aero::kernels::cuda {
namespace {  // as in online_softmax.h

/// The owner of a row, and the keys that fit in its registers.
template <class Element_, int kWarps_, int kSlots>
struct SoftmaxShape {
  using Element = Element_;
  using Team = RowTeam<kWarps_, kSlots>;
  static constexpr int kThreads = kWarps_ == 1 ? 4 * kWarp : kWarps_ * kWarp;
  static constexpr int kRows = kThreads / Team::kLanes;
  static constexpr int kSharedBytes = Team::kSharedBytes;
  static constexpr int kChunks = 4;  ///< of a lane
  static constexpr int kPerChunk = kChunkElements<Element>;
  static constexpr int kSegment = kChunks * Team::kLanes * kPerChunk;
  using Words = uint32_t[kChunks][4];

  static int64_t block_count(const TemperatureSoftmaxParams& p) {
    return tiles_of(p.batch * p.heads * p.queries, kRows);
  }
  template <class Lane>
  AERO_DEVICE static int64_t row_of(int64_t block, const Lane& lane) {
    return block * kRows + lane.thread / Team::kLanes;
  }
  /// Calls use(chunk, key) for the chunks of this lane that begin before `end`.
  template <class Lane, class Use>
  AERO_DEVICE static void for_own_chunks(const Lane& lane, int segment, int end, Use use) {
    AERO_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int key = segment + (chunk * Team::kLanes + lane.thread % Team::kLanes) * kPerChunk;
      if (key < end) use(chunk, key);
    }
  }
  /// Writes a row where `memory` is one: value(chunk, n) for keys that it sees, 0 for others. Calls
  /// load(segment) before that for rows that do not stay in registers.
  template <class Lane, class Row, class Load, class Value>
  AERO_DEVICE static void write_row(const Lane& lane, const Row& row, char* memory, Load load,
                                    Value value) {
    for (int segment = 0; segment < row.keys; segment += kSegment) {
      if (row.visible > kSegment) load(segment);
      for_own_chunks(lane, segment, row.keys, [&](int chunk, int key) {
        uint32_t written[4] = {};
        if (key < row.visible) {
          float values[kPerChunk];
          AERO_UNROLL
          for (int n = 0; n < kPerChunk; ++n) values[n] = value(chunk, n);
          pack_chunk<Element, Lane>(written, values);
        }
        if (memory) store_chunk<Element>(memory, key, row.keys, written);
      });
    }
  }
};

template <class Element_, int kWarps_>
struct SoftmaxForwardPass : SoftmaxShape<Element_, kWarps_, 3> {
  using Shape = SoftmaxShape<Element_, kWarps_, 3>;
  using Params = TemperatureSoftmaxForwardParams;
  using Shape::kSegment, Shape::kPerChunk;
  using typename Shape::Element, typename Shape::Team, typename Shape::Words;

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const int64_t index = Shape::row_of(block, lane);
    if (index >= p.batch * p.heads * p.queries) return;
    const SoftmaxRow<Element, Lane> row(p, index);
    const char* scores = row.of(p.scores);
    OnlineSoftmax<float> state{-__FLT_MAX__, 0.0f, 0.0f};
    Words words;
    const auto load = [&](int segment) {
      Shape::for_own_chunks(lane, segment, row.visible, [&](int chunk, int key) {
        row.load_scores(words[chunk], scores, key);
      });
    };
    for (int segment = 0; segment < row.visible; segment += kSegment) {
      load(segment);
      take_segment(lane, row, segment, words, state);
    }
    const auto exp2 = [](float x) { return Lane::exp2(x); };
    const float top = Team::maximum(lane, 0, state.maximum);
    state.rescale(row.exponent(state.maximum, top), exp2);
    const float sum = Team::sum(lane, 1, state.sum);
    const float score_sum = Team::sum(lane, 2, state.score_sum);

    const float inverse = sum == 0 ? 0.0f : 1 / sum;
    Shape::write_row(lane, row, row.of(p.probabilities), load, [&](int chunk, int n) {
      return Lane::exp2(row.exponent(row.score(words[chunk], n), top)) * inverse;
    });
    if (lane.thread % Team::kLanes == 0)
      store_row(p, row, index,
                finish_row<float>(top, sum, score_sum, Lane::log(sum), top / row.unit));
  }

 private:
  /// The sums of this lane's scores, relative to the highest of them.
  template <class Lane, class Row>
  AERO_DEVICE static void take_segment(const Lane& lane, const Row& row, int segment,
                                       const Words& words, OnlineSoftmax<float>& state) {
    float top = state.maximum;
    Shape::for_own_chunks(lane, segment, row.visible, [&](int chunk, int) {
      AERO_UNROLL
      for (int n = 0; n < kPerChunk; ++n) top = __builtin_fmaxf(top, row.score(words[chunk], n));
    });
    state.rescale(row.exponent(state.maximum, top), [](float x) { return Lane::exp2(x); });
    state.maximum = top;
    Shape::for_own_chunks(lane, segment, row.visible, [&](int chunk, int) {
      AERO_UNROLL
      for (int n = 0; n < kPerChunk; ++n) {
        const float x = row.exponent(row.score(words[chunk], n), top), weight = Lane::exp2(x);
        state.sum += weight;
        state.score_sum = __builtin_fmaf(weight, x, state.score_sum);
      }
    });
  }

  template <class Row>
  AERO_DEVICE static void store_row(const Params& p, const Row& row, int64_t index,
                                    const RowResult<float>& result) {
    static_cast<float*>(p.entropy)[index] = result.entropy;
    static_cast<float*>(p.logsumexp)[index] = result.logsumexp;
    if (!p.statistics) return;
    float* saved = static_cast<float*>(p.statistics) + row.saved();
    saved[0] = result.saved_maximum;
    saved[p.queries] = result.saved_sum;
    saved[2 * p.queries] = result.saved_offset;
  }
};

template <class Element_, int kWarps_>
struct SoftmaxBackwardPass : SoftmaxShape<Element_, kWarps_, 2> {
  using Shape = SoftmaxShape<Element_, kWarps_, 2>;
  using Params = TemperatureSoftmaxBackwardParams;
  using Shape::kSegment, Shape::kPerChunk;
  using typename Shape::Element, typename Shape::Team, typename Shape::Words;

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const int64_t index = Shape::row_of(block, lane);
    if (index >= p.batch * p.heads * p.queries) return;
    const SoftmaxRow<Element, Lane> row(p, index);
    const Saved saved(p, row, index);
    Words scores, gradients;
    float product = 0;  // D, this lane's share
    const auto load = [&](int segment) { load_segment(p, lane, row, segment, scores, gradients); };
    for (int segment = 0; segment < row.visible; segment += kSegment) {
      load(segment);
      if (p.dprobabilities) add_products(lane, row, saved, segment, scores, gradients, product);
    }
    const float center = Team::sum(lane, 0, product) - saved.dlogsumexp;

    float dtemperature = 0;
    char* dscores = p.dscores ? row.of(p.dscores) : nullptr;
    Shape::write_row(lane, row, dscores, load, [&](int chunk, int n) {
      const float x = row.exponent(row.score(scores[chunk], n), saved.top);
      const float z = __builtin_fmaf(x, static_cast<float>(kLn2), saved.offset);
      const float flowing = element_of<Element, Lane>(gradients[chunk], n);
      const float slope = saved.seen(x, flowing - __builtin_fmaf(saved.dentropy, z, center));
      const float dscore = Lane::exp2(x) * saved.inverse * slope;
      dtemperature = __builtin_fmaf(dscore, z, dtemperature);
      return dscore * saved.inverse_temperature;
    });
    dtemperature = Team::sum(lane, 1, dtemperature);
    if (!p.dtemperature || lane.thread % Team::kLanes != 0) return;
    // logsumexp - entropy
    const float mean_score = saved.top / row.unit - saved.offset;
    if (saved.inverse != 0) dtemperature += mean_score * saved.dlogsumexp;
    static_cast<float*>(p.dtemperature)[index] = -dtemperature * saved.inverse_temperature;
  }

 private:
  /// A row before its scores.
  struct Saved {
    float top, inverse, offset;  ///< r, 1 / l, w
    float dentropy, dlogsumexp;
    float inverse_temperature;

    template <class Row>
    AERO_DEVICE Saved(const Params& p, const Row& row, int64_t index)
        : inverse_temperature(row_scale(1.0f, row.temperature)) {
      const float* statistics = static_cast<const float*>(p.statistics) + row.saved();
      const float sum = statistics[p.queries];
      top = statistics[0];
      inverse = sum == 0 ? 0.0f : 1 / sum;
      offset = statistics[2 * p.queries];
      dentropy = p.dentropy ? static_cast<const float*>(p.dentropy)[index] : 0.0f;
      dlogsumexp = p.dlogsumexp ? static_cast<const float*>(p.dlogsumexp)[index] : 0.0f;
    }

    /// What comes back to P of a key, nothing where it is not seen: P is 0 there, but not its
    /// product with inf or NaN. A row that is NaN stays so.
    AERO_DEVICE float seen(float x, float value) const {
      return x == kLowestExponent + 0 * inverse ? 0.0f : value;
    }
  };

  template <class Lane, class Row>
  AERO_DEVICE static void load_segment(const Params& p, const Lane& lane, const Row& row,
                                       int segment, Words& scores, Words& gradients) {
    Shape::for_own_chunks(lane, segment, row.visible, [&](int chunk, int key) {
      row.load_scores(scores[chunk], row.of(p.scores), key);
      if (p.dprobabilities)
        row.load_gradients(gradients[chunk], row.of(p.dprobabilities), key);
      else
        gradients[chunk][0] = gradients[chunk][1] = gradients[chunk][2] = gradients[chunk][3] = 0;
    });
  }

  /// D = sum_j P_ij dP_ij, over this lane's keys.
  template <class Lane, class Row>
  AERO_DEVICE static void add_products(const Lane& lane, const Row& row, const Saved& saved,
                                       int segment, const Words& scores, const Words& gradients,
                                       float& product) {
    Shape::for_own_chunks(lane, segment, row.visible, [&](int chunk, int) {
      AERO_UNROLL
      for (int n = 0; n < kPerChunk; ++n) {
        const float x = row.exponent(row.score(scores[chunk], n), saved.top);
        const float flowing = saved.seen(x, element_of<Element, Lane>(gradients[chunk], n));
        product = __builtin_fmaf(Lane::exp2(x) * saved.inverse, flowing, product);
      }
    });
  }
};

/// Calls visit(Chosen<Pass>) with the pass that does a direction: a warp for rows that fit in its
/// registers, else a block.
template <class Element, class Visit>
void with_softmax_pass(const TemperatureSoftmaxForwardParams& p, Visit visit) {
  if (p.keys <= SoftmaxForwardPass<Element, 1>::kSegment)
    visit(Chosen<SoftmaxForwardPass<Element, 1>>{});
  else
    visit(Chosen<SoftmaxForwardPass<Element, 8>>{});
}
template <class Element, class Visit>
void with_softmax_pass(const TemperatureSoftmaxBackwardParams& p, Visit visit) {
  if (p.keys <= SoftmaxBackwardPass<Element, 1>::kSegment)
    visit(Chosen<SoftmaxBackwardPass<Element, 1>>{});
  else
    visit(Chosen<SoftmaxBackwardPass<Element, 8>>{});
}

}  // namespace
}  // namespace aero::kernels::cuda
