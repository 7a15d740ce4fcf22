// The common parts of the passes of attention's backward direction: sizes of tiles, their place in
// shared memory, the gradient of one score, and queries that stream by keys.
#pragma once

#include "kernels/cuda/attention_backward_rows.h"

namespace aero::kernels::cuda {

/// Sizes of tiles, by the bytes of a row; see ForwardShape.
template <class Element_, int kWidth_>
struct BackwardShape : RowShape<Element_, kWidth_> {
  using RowShape<Element_, kWidth_>::kRowBytes;
  static constexpr int kWarps = kRowBytes <= 512 ? 4 : 2;
  static constexpr int kStaying = 16 * kWarps;
  static constexpr int kStreamed = kRowBytes <= 128 ? 64 : kRowBytes <= 256 ? 32 : 16;
  static constexpr int kStages = kRowBytes <= 512 ? 2 : 1;
  static constexpr bool kInRegisters = kRowBytes <= 128;
  /// Of the pass that owns keys. Of 128 channels their values do not fit beside them.
  static constexpr bool kKeysInRegisters =
      kInRegisters || (Element_::kBytes == 2 && kWidth_ <= 128);
  /// Blocks that share the columns of dK and dV: all of them would not fit in the registers.
  static constexpr int kParts = kWidth_ <= 128 ? 1 : 2;
  /// Tiles of 16 queries of a warp that owns queries. Two read shared memory less often, as they
  /// take the same keys; of other widths they would spill, or hold fewer keys in registers.
  static constexpr int kQueryTiles =
      Element_::kBytes == 2 && (kWidth_ == 128 || kWidth_ == 64) ? 2 : 1;
  /// Keys that such a warp takes at a time.
  static constexpr int kQueryKeys = kQueryTiles == 2 ? 32 : kStreamed;
};

/// Shared memory of both passes: stages of two tiles that stream by (and what belongs to them), and
/// two tiles that stay. Those that go on to registers come in where the second stage will be.
template <class Shape, int kExtraBytes, int kStaying = Shape::kStaying>
struct BackwardMemory {
  static constexpr int kTileBytes = Shape::kStreamed * Shape::kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes + kExtraBytes;
  static constexpr int kStayingBase = kStageBytes * (Shape::kInRegisters ? 1 : Shape::kStages);
  static constexpr int kStayingBytes = kStaying * Shape::kRowBytes;
  static constexpr int kSharedBytes =
      largest(kStageBytes * Shape::kStages, kStayingBase + 2 * kStayingBytes);
  using Rows = SharedRows<Shape::kRowBytes>;

  AERO_DEVICE static Rows first(int stage) { return {stage * kStageBytes}; }
  AERO_DEVICE static Rows second(int stage) { return {stage * kStageBytes + kTileBytes}; }
  AERO_DEVICE static int extra(int stage) { return stage * kStageBytes + 2 * kTileBytes; }
  AERO_DEVICE static Rows first_staying() { return {kStayingBase}; }
  AERO_DEVICE static Rows second_staying() { return {kStayingBase + kStayingBytes}; }
};

/// Tiles of queries that stream by keys that stay, and what is known of their rows: kStreamed
/// weights, then as many gradients. Rows of the tiles of scores are keys here, columns queries.
template <class Shape>
struct StreamedQueries {
  using Element = typename Shape::Element;
  static constexpr int kStreamed = Shape::kStreamed;
  static constexpr int kThreads = Shape::kWarps * kWarp;
  using Memory = BackwardMemory<Shape, kStreamed * 32>;

  /// The queries of a head in memory. Kept from tile to tile: to find them takes 100 instructions.
  struct Source {
    TensorRows<const char> queries, douts;
    const RowValues* rows;
    int of_head;

    template <class Int>
    AERO_DEVICE Source(const BackwardParams& p, const Head<Int>& head)
        : queries(query_rows<Element>(p, p.q, head)),
          douts(dout_rows<Shape>(p, head)),
          rows(RowTable(p.workspace).rows + row_index(p, head, 0)),
          of_head(static_cast<int>(head.head)) {}

    template <class Int>
    AERO_DEVICE void turn_to(const BackwardParams& p, const Head<Int>& head) {
      if (head.head != of_head) *this = Source(p, head);
    }

    template <class Lane>
    AERO_DEVICE void fetch(Lane& lane, int query, int stage) const {
      fetch_rows<Element, kStreamed, kThreads>(lane, Memory::first(stage), queries, query);
      fetch_rows<Element, kStreamed, kThreads>(lane, Memory::second(stage), douts, query);
      // Weights and gradients of rows that are not there are 0.
      static_assert(2 * kStreamed % kWarp == 0, "whole warps copy");
      AERO_UNROLL
      for (int first = 0; first < 2 * kStreamed; first += kThreads) {
        const int n = first + lane.thread;
        if (n >= 2 * kStreamed) continue;
        const int half = n >= kStreamed ? 1 : 0, row = query + n - half * kStreamed;
        const bool exists = row < queries.end;
        lane.copy_async(Memory::extra(stage) + n * 16,
                        reinterpret_cast<const char*>(rows + (exists ? row : 0)) + half * 16,
                        exists ? 16 : 0);
      }
    }
  };

  template <class Lane>
  AERO_DEVICE static RowWeights weights_of(Lane& lane, int stage, int row) {
    return load<RowWeights>(lane, Memory::extra(stage) + row * 16);
  }
  template <class Lane>
  AERO_DEVICE static RowGradient gradient_of(Lane& lane, int stage, int row) {
    return load<RowGradient>(lane, Memory::extra(stage) + (kStreamed + row) * 16);
  }

  /// Products of keys from `key` on and queries become weights, products of values and dO gradients
  /// of scores, scaled. Calls use(column, gradient) with each before that; a lane has kStreamed / 4
  /// columns.
  template <int kRowTiles, class Lane, class Use>
  AERO_DEVICE static void weigh(Lane& lane, const VisibleKeys& visible, int query, int key,
                                int stage, float (&weights)[kRowTiles][kStreamed / 8][4],
                                float (&dscores)[kRowTiles][kStreamed / 8][4], Use use) {
    scale_scores(lane, stage, weights);
    if (!visible.sees_all(query, query, key, key + 16 * kRowTiles - 1))
      hide_queries(lane, visible, query, key, weights, kHiddenScore);
    AERO_UNROLL
    for (int block = 0; block < kStreamed / 8; ++block) AERO_UNROLL
    for (int column = 0; column < 2; ++column) {
      const int in_tile = block * 8 + member_of(lane) * 2 + column;
      const RowWeights row = weights_of(lane, stage, in_tile);
      const RowGradient gradient = gradient_of(lane, stage, in_tile);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int n = column; n < 4; n += 2) {
        const ScoreGradient of(lane, weights[r][block][n], dscores[r][block][n], row, gradient);
        use(block * 2 + column, of);
        weights[r][block][n] = of.weight;
        dscores[r][block][n] = of.dscore * gradient.scale;
      }
    }
  }

  /// The same of a call that varies; weights without the factor of dropout.
  template <int kRowTiles, class Lane>
  AERO_DEVICE static void weigh_varied(const BackwardParams& p, const Head<int64_t>& h, Lane& lane,
                                       const WindowedKeys& visible, int query, int key, int stage,
                                       float (&weights)[kRowTiles][kStreamed / 8][4],
                                       float (&dscores)[kRowTiles][kStreamed / 8][4]) {
    const int64_t row = row_index(p, h, query);
    const SoftCap cap(p);
    const HeadDropout dropout(p, h);
    cap.apply(lane, weights);
    if (!visible.sees_all(query, query + kStreamed - 1, key, key + 16 * kRowTiles - 1))
      hide_queries(lane, visible, query, key, weights, kMaskedScore<float>);
    AERO_UNROLL
    for (int block = 0; block < kStreamed / 8; ++block) AERO_UNROLL
    for (int column = 0; column < 2; ++column) {
      const int in_tile = block * 8 + member_of(lane) * 2 + column;
      const RowWeights own = weights_of(lane, stage, in_tile);
      const RowGradient gradient = gradient_of(lane, stage, in_tile);
      const LargestGradient largest(p, row + in_tile, query + in_tile < visible.queries);
      const uint64_t row_key = dropout.row(query + in_tile);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int n = column; n < 4; n += 2) {
        const int at = key + 16 * r + 8 * (n / 2) + group_of(lane);
        const float product = weights[r][block][n];
        ScoreGradient of(lane, varied_score(product, own),
                         dropout.kept(dscores[r][block][n], row_key, at) * dropout.factor, own,
                         gradient);
        of.dscore += largest.at(at);
        weights[r][block][n] = dropout.kept(of.weight, row_key, at);
        dscores[r][block][n] = of.dscore * gradient.scale * cap.slope(product);
      }
    }
  }

 private:
  /// x = score - maximum of each, in units of log 2.
  template <int kRowTiles, class Lane>
  AERO_DEVICE static void scale_scores(Lane& lane, int stage,
                                       float (&scores)[kRowTiles][kStreamed / 8][4]) {
    AERO_UNROLL
    for (int block = 0; block < kStreamed / 8; ++block) AERO_UNROLL
    for (int column = 0; column < 2; ++column) {
      uint32_t words[2];
      lane.load_words(words,
                      Memory::extra(stage) + (block * 8 + member_of(lane) * 2 + column) * 16);
      const auto scale = __builtin_bit_cast(float, words[0]);
      const auto maximum = __builtin_bit_cast(float, words[1]);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int n = column; n < 4; n += 2)
        scores[r][block][n] = scores[r][block][n] * scale - maximum;
    }
  }

  template <class Row, class Lane>
  AERO_DEVICE static Row load(Lane& lane, int from) {
    uint32_t words[4];
    lane.load_words(words, from);
    return {__builtin_bit_cast(float, words[0]), __builtin_bit_cast(float, words[1]),
            __builtin_bit_cast(float, words[2]), __builtin_bit_cast(float, words[3])};
  }
};

}  // namespace aero::kernels::cuda
