// Forward pass of attention with temperature and entropy: a block owns a tile of queries of one
// head, a warp 16 or 32 rows of it, four lanes a row. Equations: ../online_softmax.h.
#pragma once

#include "kernels/cuda/attention_variants.h"

namespace aero::kernels::cuda {
namespace {  // as in online_softmax.h

/// Sizes of tiles. All fit in the 99 KiB of shared memory that a block may have on sm_86.
template <class Element_, int kWidth_>
struct ForwardShape : RowShape<Element_, kWidth_> {
  using RowShape<Element_, kWidth_>::kRowBytes;
  static constexpr int kWarps = 4;
  /// Two tiles of 16 rows read shared memory half as often. Of 96 channels they spill.
  static constexpr int kRowTiles =
      Element_::kBytes == 2 && (kWidth_ <= 64 || kWidth_ == 128) ? 2 : 1;
  static constexpr int kQueries = 16 * kRowTiles * kWarps;
  /// float32 weights are multiplied in two parts; of 64 keys they spill beside 32 words of queries.
  static constexpr bool kHasRoom = kRowBytes <= (Element_::kBytes == 2 ? 256 : 128);
  static constexpr int kKeys = kHasRoom ? 64 : kRowBytes <= 512 ? 32 : 16;
  static constexpr int kStages = kRowBytes <= 512 ? 2 : 1;
  static constexpr bool kQueriesInRegisters = kRowBytes <= 256 && kRowTiles * kWidth_ <= 128;
};

/// T and S up to 128, where a head is one tile and nothing is rescaled.
template <class Element_, int kWidth_>
struct ShortForwardShape : RowShape<Element_, kWidth_> {
  static constexpr int kWarps = 8;
  static constexpr int kRowTiles = 1;
  static constexpr int kQueries = 128;
  static constexpr int kKeys = 128;
  static constexpr int kStages = 1;
  static constexpr bool kQueriesInRegisters = true;
};

template <class Shape>
struct ForwardPass : Shape {
  using Params = AttentionEntropyForwardParams;
  using Keys = KeysOf<Shape>;
  using Shape::kKeys, Shape::kQueries, Shape::kRowBytes, Shape::kRowTiles, Shape::kStages,
      Shape::kVaries;
  using typename Shape::Element;
  static constexpr int kThreads = Shape::kWarps * kWarp;
  static constexpr int kPairBytes = 2 * kKeys * kRowBytes;
  static constexpr int kQueryBytes = kQueries * kRowBytes;
  /// Queries that go on to registers come in where the second tile of keys will be.
  static constexpr int kQueryBase =
      kPairBytes * (Shape::kQueriesInRegisters && kStages == 2 ? 1 : kStages);
  static constexpr int kSharedBytes = largest(kStages * kPairBytes, kQueryBase + kQueryBytes);

  static int64_t block_count(const Params& p) {
    return p.batch * p.heads * tiles_of(p.queries, kQueries);
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const auto tiles = static_cast<int>(tiles_of(p.queries, kQueries));
    const auto index = static_cast<int>(block);
    const Head<int> head(p, index / tiles);
    // Under the causal rule the last queries see most; blocks begin in this order.
    const int first = (tiles - 1 - index % tiles) * kQueries;
    const Keys visible(p, head.batch, head.head);
    const auto keys = key_rows<Element>(p, p.k, head);
    const auto values = key_rows<Element>(p, p.v, head);
    const int first_tile = visible.begin(first) / kKeys;
    const int key_tiles = (visible.end(first + kQueries - 1) + kKeys - 1) / kKeys - first_tile;
    const auto fetch = [&](int tile, int stage) {
      if constexpr (kVaries) tile += first_tile;
      fetch_rows<Element, kKeys, kThreads>(lane, key_stage(stage), keys, tile * kKeys);
      fetch_rows<Element, kKeys, kThreads>(lane, value_stage(stage), values, tile * kKeys);
    };
    fetch_rows<Element, kQueries, kThreads>(lane, Rows{kQueryBase},
                                            query_rows<Element>(p, p.q, head), first);
    lane.commit_copies();
    if (key_tiles > 0) fetch(0, 0);
    lane.commit_copies();
    lane.template wait_copies<1>();
    lane.barrier();
    round_rows<Element, kQueries, kThreads>(lane, Rows{kQueryBase});

    const int in_tile = warp_of(lane) * 16 * kRowTiles;
    Warp warp(p, head, lane, first + in_tile, in_tile);
    stream_tiles<kStages>(lane, key_tiles, fetch, [&](int tile, int stage) {
      lane.thread = lane.fresh(lane.thread);
      round_rows<Element, 2 * kKeys, kThreads>(lane, key_stage(stage));
      warp.take_keys(p, head, lane, visible, (first_tile + tile) * kKeys, key_stage(stage),
                     value_stage(stage));
    });
    warp.finish(p, head, lane);
    store_sums<Element>(lane, Rows{0}, in_tile, warp.sums);
    lane.barrier();
    copy_out_rows<Element, kQueries, kThreads>(
        lane, rows_of<char>(p.out, head.batch, head.head, p.queries, p.head_dim, Element::kBytes),
        Rows{0}, first);
  }

 private:
  using Rows = SharedRows<kRowBytes>;

  AERO_DEVICE static Rows key_stage(int stage) { return {stage * kPairBytes}; }
  AERO_DEVICE static Rows value_stage(int stage) {
    return {stage * kPairBytes + kKeys * kRowBytes};
  }

  /// A maximum need not be that of the scores seen: weights up to 2^8 lose no digits in sums. In 16
  /// bits the heaviest is then rounded as the others are, where it would be exactly 1. So most
  /// tiles look for a score this far above it, in each lane for itself, and neither exchange maxima
  /// nor rescale sums.
  static constexpr float kTolerated = 8;
  /// Up to this size of a maximum a score is not rounded before it is subtracted. In float32 the
  /// digits that a large maximum would cost are more than those that its weights are rounded to.
  static constexpr float kUsualMaximum = Element::kBytes == 4 ? 16 : 4096;

  /// A warp's values of its rows; index [tile][half] is row 16 tile + 8 half + group.
  struct Warp {
    int first, last, group, member;
    StayingRows<kRowTiles, kRowBytes, Shape::kQueriesInRegisters> queries;
    float scale[kRowTiles][2];
    OnlineSoftmax<float> state[kRowTiles][2];
    /// A maximum or a scale, so that scores are rounded before. Of a sink it is not known yet.
    bool is_unusual = kVaries;
    float sums[kRowTiles][Shape::kWidth / 8][4];  ///< sum of weights times values

    template <class Lane>
    AERO_DEVICE Warp(const Params& p, const Head<int>& h, Lane& lane, int first_row, int in_tile)
        : first(first_row),
          last(first_row + 16 * kRowTiles - 1),
          group(group_of(lane)),
          member(member_of(lane)),
          queries(lane, Rows{kQueryBase}, in_tile) {
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int query = row(r, half);
        scale[r][half] = query < p.queries
                             ? row_scale(score_scale<kVaries>(p), temperature_of(p, h, query))
                             : 0.0f;
        state[r][half] = {kEmptyMaximum<float>, 0.0f, 0.0f};
        if constexpr (kVaries)
          if (p.sinks && query < p.queries) {
            state[r][half].begin_with(sink_score(p, h, temperature_of(p, h, query)));
            if (member != 0) state[r][half].sum = 0;  // one lane of the row's four
          }
        if constexpr (kVaries)
          if (p.largest_key && owns(p, r, half)) LargestKey{}.put(p, row_index(p, h, query));
      }
      clear(sums);
    }

    AERO_DEVICE int row(int r, int half) const { return first + 16 * r + 8 * half + group; }
    /// Whether this lane stores what is known of a row.
    AERO_DEVICE bool owns(const Params& p, int r, int half) const {
      return member == 0 && row(r, half) < p.queries;
    }

    template <class Lane>
    AERO_DEVICE void take_keys(const Params& p, const Head<int>& h, Lane& lane, const Keys& visible,
                               int key, Rows keys, Rows values) {
      if (first >= visible.queries || key >= visible.end(last)) return;
      if (visible.starts_after(first, key + kKeys - 1)) return;
      float weights[kRowTiles][kKeys / 8][4];
      multiply_rows<Element>(lane, weights, queries, keys);
      if constexpr (kVaries) SoftCap(p).apply(lane, weights);
      float factor[kRowTiles][2];
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) factor[r][half] = scale[r][half];
      const bool sees_all = visible.sees_all(first, last, key, key + kKeys - 1);
      if (key == 0 || !sees_all || is_unusual || lane.any(rises(weights))) {
        AERO_UNROLL
        for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
        for (int block = 0; block < kKeys / 8; ++block) AERO_UNROLL
        for (int n = 0; n < 4; ++n) weights[r][block][n] *= scale[r][n / 2];
        if (!sees_all) hide_keys(lane, visible, first, key, weights, kMaskedScore<float>);
        raise_maxima(lane, key, weights);
        AERO_UNROLL
        for (int r = 0; r < kRowTiles; ++r) factor[r][0] = factor[r][1] = 1;
      }
      if constexpr (kVaries)
        if (p.largest_key) find_largest(p, h, lane, key, weights, factor);
      weigh<Lane>(weights, factor);
      if constexpr (kVaries) drop(p, h, key, weights);
      add_weighted_rows<Element>(lane, sums, weights, values, 0);
    }

    /// The highest of a row's scores that this lane has.
    AERO_DEVICE static float highest(const float (&scores)[kKeys / 8][4], int half) {
      float top = __builtin_fmaxf(scores[0][2 * half], scores[0][2 * half + 1]);
      AERO_UNROLL
      for (int block = 1; block < kKeys / 8; ++block)
        top = __builtin_fmaxf(
            top, __builtin_fmaxf(scores[block][2 * half], scores[block][2 * half + 1]));
      return top;
    }

    /// Whether a score lies so far above the maximum that weights would grow too large.
    AERO_DEVICE bool rises(const float (&products)[kRowTiles][kKeys / 8][4]) const {
      bool any = false;
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float top = highest(products[r], half) * scale[r][half];
        any |= !(top <= state[r][half].maximum + kTolerated);
      }
      return any;
    }

    /// Raises the maxima of all rows to those of these scores.
    template <class Lane>
    AERO_DEVICE void raise_maxima(Lane& lane, int key,
                                  const float (&scores)[kRowTiles][kKeys / 8][4]) {
      bool unusual = false;
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        OnlineSoftmax<float>& sum = state[r][half];
        const float maximum =
            maximum_over_group(lane, __builtin_fmaxf(sum.maximum, highest(scores[r], half)));
        unusual |= !(scale[r][half] >= 0) || (!(__builtin_fabsf(maximum) <= kUsualMaximum) &&
                                              maximum != kEmptyMaximum<float>);
        if (!kVaries && kStages == 1 && key == 0) {
          sum.maximum = maximum;
          continue;
        }
        // Not raise_maximum: its order of factors spills 192 bytes at D = 64. In this one the
        // product is finite for scores up to 1e32.
        const float delta = sum.maximum - maximum, factor = Lane::exp2(delta);
        sum = {maximum, factor * sum.sum, factor * (sum.score_sum + delta * sum.sum)};
        AERO_UNROLL
        for (int block = 0; block < Shape::kWidth / 8; ++block) {
          sums[r][block][2 * half] *= factor;
          sums[r][block][2 * half + 1] *= factor;
        }
      }
      is_unusual = lane.any(unusual);
    }

    /// Takes in the largest scores, still to be multiplied by their row's factor.
    template <class Lane>
    AERO_DEVICE void find_largest(const Params& p, const Head<int>& h, Lane& lane, int key,
                                  const float (&scores)[kRowTiles][kKeys / 8][4],
                                  const float (&factor)[kRowTiles][2]) const {
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float top = highest(scores[r], half) * factor[r][half];
        int at = 0;
        AERO_UNROLL
        for (int block = kKeys / 8 - 1; block >= 0; --block) AERO_UNROLL
        for (int n = 1; n >= 0; --n)
          if (scores[r][block][2 * half + n] * factor[r][half] == top) at = block * 8 + n;
        LargestKey largest;
        if (top > largest.score) largest = {top, key + 2 * member + at};
        largest.join(lane);
        if (owns(p, r, half)) largest.raise(p, row_index(p, h, row(r, half)));
      }
    }

    /// Scores, still to be multiplied by their row's factor, become weights 2^(score - maximum),
    /// which the running sums take in. The sums are those of this lane's columns until the end: all
    /// formulas are linear in them.
    template <class Lane>
    AERO_DEVICE void weigh(float (&weights)[kRowTiles][kKeys / 8][4],
                           const float (&factor)[kRowTiles][2]) {
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int block = 0; block < kKeys / 8; ++block) AERO_UNROLL
      for (int n = 0; n < 4; ++n) {
        OnlineSoftmax<float>& sum = state[r][n / 2];
        const float x = __builtin_fmaf(weights[r][block][n], factor[r][n / 2], -sum.maximum);
        const float weight = Lane::exp2(x);
        sum.sum += weight;
        sum.score_sum = __builtin_fmaf(weight, x, sum.score_sum);
        weights[r][block][n] = weight;
      }
    }

    /// Leaves the weights that dropout keeps, once the running sums have all of them. Their factor
    /// comes in at the end.
    AERO_DEVICE void drop(const Params& p, const Head<int>& h, int key,
                          float (&weights)[kRowTiles][kKeys / 8][4]) const {
      const HeadDropout dropout(p, h);
      if (!dropout.drops) return;
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint64_t own = dropout.row(row(r, half));
        AERO_UNROLL
        for (int block = 0; block < kKeys / 8; ++block) AERO_UNROLL
        for (int n = 0; n < 2; ++n) {
          float& weight = weights[r][block][2 * half + n];
          weight = dropout.kept(weight, own, key + block * 8 + 2 * member + n);
        }
      }
    }

    template <class Lane>
    AERO_DEVICE void finish(const Params& p, const Head<int>& h, Lane& lane) {
      const float kept = kVaries ? dropout_factor<float>(p.dropout) : 1.0f;
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float sum = sum_over_group(lane, state[r][half].sum);
        const float score_sum = sum_over_group(lane, state[r][half].score_sum);
        const float inverse = sum == 0 ? 0.0f : kept / sum;
        AERO_UNROLL
        for (int block = 0; block < Shape::kWidth / 8; ++block) {
          sums[r][block][2 * half] *= inverse;
          sums[r][block][2 * half + 1] *= inverse;
        }
        if (member != 0 || row(r, half) >= p.queries) continue;
        store_row(p, row_index(p, h, row(r, half)),
                  finish_row<float>(OnlineSoftmax<float>{state[r][half].maximum, sum, score_sum},
                                    Lane::log(sum)));
        if constexpr (kVaries)
          finish_variants(p, h, row(r, half), {state[r][half].maximum, sum, score_sum});
      }
    }

    AERO_DEVICE static void finish_variants(const Params& p, const Head<int>& h, int query,
                                            const OnlineSoftmax<float>& sums) {
      const int64_t index = row_index(p, h, query);
      if (p.largest_key) LargestKey::finish(p, index, sums.sum);
      const bool has_largest = p.largest_key && p.largest_key[index] >= 0;
      if (p.sinks && p.statistics && !has_largest &&
          sums.is_only(sink_score(p, h, temperature_of(p, h, query))))
        saved_of(p, index)[p.queries] = 0;
    }

    /// [B, H, 3, T]
    AERO_DEVICE static float* saved_of(const Params& p, int64_t index) {
      return static_cast<float*>(p.statistics) + index +
             index / p.queries * (kSavedStatistics - 1) * p.queries;
    }
    AERO_DEVICE static void store_row(const Params& p, int64_t index, const RowResult<float>& row) {
      static_cast<float*>(p.entropy)[index] = row.entropy;
      static_cast<float*>(p.logsumexp)[index] = row.logsumexp;
      if (!p.statistics) return;
      float* saved = saved_of(p, index);
      saved[0] = row.saved_maximum;
      saved[p.queries] = row.saved_sum;
      saved[2 * p.queries] = row.saved_offset;
    }
  };
};

}  // namespace
}  // namespace aero::kernels::cuda
