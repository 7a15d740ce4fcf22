// Backward pass of attention with temperature and entropy, in two passes that share nothing but
// scratch memory: blocks that own queries compute dQ and dtemperature, blocks that own keys compute
// dK and dV. Scores and dP are computed in both. Nothing is summed over blocks, so there are no
// atomics and the result is bitwise the same run to run. Equations: ../online_softmax.h.
//
// Both keep their own rows as left operands and let the others stream by. Weights and gradients of
// scores are then left operands of the products that follow as they stand, in registers.
#pragma once

#include "kernels/cuda/attention_backward_tiles.h"

namespace aero::kernels::cuda {

/// dQ = c dS K and dt = -(1/t) (sum_j dS z + (logsumexp - entropy) gL) of a tile of queries.
template <class Shape>
struct BackwardQueryPass : Shape {
  using Params = BackwardParams;
  using Keys = KeysOf<Shape>;
  using Shape::kQueryKeys, Shape::kRowBytes, Shape::kStages, Shape::kStreamed, Shape::kVaries;
  using typename Shape::Element;
  static constexpr int kRowTiles = Shape::kQueryTiles;
  static constexpr int kStaying = Shape::kStaying * kRowTiles;
  using Memory = BackwardMemory<Shape, 0, kStaying>;
  using Rows = typename Memory::Rows;
  static constexpr int kThreads = Shape::kWarps * kWarp;
  static constexpr int kSharedBytes = Memory::kSharedBytes;

  static int64_t block_count(const Params& p) {
    return p.dq || p.dtemperature ? p.batch * p.heads * tiles_of(p.queries, kStaying) : 0;
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const auto tiles = static_cast<int>(tiles_of(p.queries, kStaying));
    const Head<int64_t> head(p, block / tiles);
    const int first = (tiles - 1 - static_cast<int>(block % tiles)) * kStaying;
    const Keys visible(p, head.batch, head.head);
    const auto keys = key_rows<Element>(p, p.k, head);
    const auto values = if_dout(p, key_rows<Element>(p, p.v, head));
    const int first_tile = visible.begin(first) / kStreamed;
    const int key_tiles =
        (visible.end(first + kStaying - 1) + kStreamed - 1) / kStreamed - first_tile;
    const auto fetch = [&](int tile, int stage) {
      if constexpr (kVaries) tile += first_tile;
      fetch_rows<Element, kStreamed, kThreads>(lane, Memory::first(stage), keys, tile * kStreamed);
      fetch_rows<Element, kStreamed, kThreads>(lane, Memory::second(stage), values,
                                               tile * kStreamed);
    };
    fetch_rows<Element, kStaying, kThreads>(lane, Memory::first_staying(),
                                            query_rows<Element>(p, p.q, head), first);
    fetch_rows<Element, kStaying, kThreads>(lane, Memory::second_staying(),
                                            dout_rows<Shape>(p, head), first);
    lane.commit_copies();
    if (key_tiles > 0) fetch(0, 0);
    lane.commit_copies();
    lane.template wait_copies<1>();
    lane.barrier();
    round_rows<Element, 2 * kStaying, kThreads>(lane, Memory::first_staying());

    const int in_tile = warp_of(lane) * 16 * kRowTiles;
    Warp warp(p, head, lane, first + in_tile, in_tile);
    stream_tiles<kStages>(lane, key_tiles, fetch, [&](int tile, int stage) {
      lane.thread = lane.fresh(lane.thread);
      round_rows<Element, kStreamed, kThreads>(lane, Memory::first(stage));
      round_rows<Element, kStreamed, kThreads>(lane, Memory::second(stage));
      AERO_ROLLED
      for (int n = 0; n < kStreamed; n += kQueryKeys)
        warp.take_keys(p, head, lane, visible, (first_tile + tile) * kStreamed + n,
                       Rows{Memory::first(stage).base + n * kRowBytes},
                       Rows{Memory::second(stage).base + n * kRowBytes});
    });
    warp.finish(p, head, lane);
    if (!p.dq) return;
    store_sums<Element>(lane, Rows{0}, in_tile, warp.dq);
    lane.barrier();
    copy_out_rows<Element, kStaying, kThreads>(
        lane, rows_of<char>(p.dq, head.batch, head.head, p.queries, p.head_dim, Element::kBytes),
        Rows{0}, first);
  }

 private:
  /// Gradients of scores are scaled before they become float16, which has few exponents; else dQ
  /// is, once.
  static constexpr bool kScaleFirst = Element::kDataType == DataType::kFloat16;

  /// A warp's values of its rows; index [tile][half] is row 16 tile + 8 half + group.
  struct Warp {
    int first, group, member;
    StayingRows<kRowTiles, kRowBytes, Shape::kInRegisters> queries, douts;
    RowWeights weights[kRowTiles][2];
    RowGradient gradients[kRowTiles][2];
    float dtemperature[kRowTiles][2] = {};  ///< sum_j dS z of this lane's columns so far
    float dq[kRowTiles][Shape::kWidth / 8][4];

    template <class Lane>
    AERO_DEVICE Warp(const Params& p, const Head<int64_t>& h, Lane& lane, int first_row,
                     int in_tile)
        : first(first_row),
          group(group_of(lane)),
          member(member_of(lane)),
          queries(lane, Memory::first_staying(), in_tile),
          douts(lane, Memory::second_staying(), in_tile) {
      const RowTable table(p.workspace);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        weights[r][half] = {}, gradients[r][half] = {};
        if (row(r, half) >= p.queries) continue;
        const RowValues& own = table.rows[row_index(p, h, row(r, half))];
        weights[r][half] = own.weights;
        gradients[r][half] = own.gradient;
      }
      clear(dq);
    }
    AERO_DEVICE int row(int r, int half) const { return first + 16 * r + 8 * half + group; }

    template <class Lane>
    AERO_DEVICE void take_keys(const Params& p, const Head<int64_t>& h, Lane& lane,
                               const Keys& visible, int key, Rows keys, Rows values) {
      const int last = first + 16 * kRowTiles - 1, last_key = key + kQueryKeys - 1;
      if (first >= visible.queries || key >= visible.end(last)) return;
      if (visible.starts_after(first, last_key)) return;
      float scores[kRowTiles][kQueryKeys / 8][4], dscores[kRowTiles][kQueryKeys / 8][4];
      multiply_rows<Element>(lane, scores, queries, keys);
      multiply_rows<Element>(lane, dscores, douts, values);
      if constexpr (kVaries)
        weigh_varied(p, h, lane, visible, key, scores, dscores);
      else
        weigh(lane, visible, key, scores, dscores);
      add_weighted_rows<Element>(lane, dq, dscores, keys, 0);
    }

    /// Products of queries and keys, and of dO and values, become gradients of scores.
    template <class Lane>
    AERO_DEVICE void weigh(Lane& lane, const Keys& visible, int key,
                           float (&scores)[kRowTiles][kQueryKeys / 8][4],
                           float (&dscores)[kRowTiles][kQueryKeys / 8][4]) {
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int block = 0; block < kQueryKeys / 8; ++block) AERO_UNROLL
      for (int n = 0; n < 4; ++n)
        scores[r][block][n] =
            scores[r][block][n] * weights[r][n / 2].scale - weights[r][n / 2].maximum;
      if (!visible.sees_all(first, first, key, key + kQueryKeys - 1))
        hide_keys(lane, visible, first, key, scores, kHiddenScore);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int block = 0; block < kQueryKeys / 8; ++block) AERO_UNROLL
      for (int n = 0; n < 4; ++n) {
        const int half = n / 2;
        const ScoreGradient of(lane, scores[r][block][n], dscores[r][block][n], weights[r][half],
                               gradients[r][half]);
        dtemperature[r][half] = __builtin_fmaf(of.dscore, of.z, dtemperature[r][half]);
        dscores[r][block][n] = kScaleFirst ? of.dscore * gradients[r][half].scale : of.dscore;
      }
    }

    /// The same of a call that varies.
    template <class Lane>
    AERO_DEVICE void weigh_varied(const Params& p, const Head<int64_t>& h, Lane& lane,
                                  const Keys& visible, int key,
                                  float (&scores)[kRowTiles][kQueryKeys / 8][4],
                                  float (&dscores)[kRowTiles][kQueryKeys / 8][4]) {
      const SoftCap cap(p);
      const HeadDropout dropout(p, h);
      cap.apply(lane, scores);
      if (!visible.sees_all(first, first + 16 * kRowTiles - 1, key, key + kQueryKeys - 1))
        hide_keys(lane, visible, first, key, scores, kMaskedScore<float>);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        const LargestGradient largest = largest_of(p, h, r, half);
        const uint64_t own = dropout.row(row(r, half));
        AERO_UNROLL
        for (int block = 0; block < kQueryKeys / 8; ++block) AERO_UNROLL
        for (int n = 0; n < 2; ++n) {
          const int at = key + block * 8 + 2 * member + n;
          const float product = scores[r][block][2 * half + n];
          float& dscore = dscores[r][block][2 * half + n];
          ScoreGradient of(lane, varied_score(product, weights[r][half]),
                           dropout.kept(dscore, own, at) * dropout.factor, weights[r][half],
                           gradients[r][half]);
          of.dscore += largest.at(at);
          dtemperature[r][half] = __builtin_fmaf(of.dscore, of.z, dtemperature[r][half]);
          dscore = of.dscore * cap.slope(product);
          if constexpr (kScaleFirst) dscore *= gradients[r][half].scale;
        }
      }
    }
    AERO_DEVICE LargestGradient largest_of(const Params& p, const Head<int64_t>& h, int r,
                                           int half) const {
      return {p, row_index(p, h, row(r, half)), row(r, half) < p.queries};
    }

    template <class Lane>
    AERO_DEVICE void finish(const Params& p, const Head<int64_t>& h, Lane& lane) {
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
      for (int half = 0; half < 2; ++half) {
        AERO_UNROLL
        for (int block = 0; !kScaleFirst && block < Shape::kWidth / 8; ++block) {
          dq[r][block][2 * half] *= gradients[r][half].scale;
          dq[r][block][2 * half + 1] *= gradients[r][half].scale;
        }
        float sum = sum_over_group(lane, dtemperature[r][half]);
        if (!p.dtemperature || member != 0 || row(r, half) >= p.queries) continue;
        const int64_t index = row_index(p, h, row(r, half));
        const RowWeights& own = weights[r][half];
        // logsumexp - entropy
        const float mean_score = static_cast<float>(kLn2) * own.maximum - own.offset;
        if (p.dlogsumexp && own.inverse_sum != 0)
          sum += mean_score * static_cast<const float*>(p.dlogsumexp)[index];
        if constexpr (kVaries) {
          if (own.inverse_sum != 0) sum += mean_score * largest_of(p, h, r, half).of_row();
          if (p.sinks) {
            const ScoreGradient of =
                sink_gradient(lane, p, h, row(r, half), {weights[r][half], gradients[r][half]});
            sum = __builtin_fmaf(of.dscore, of.z, sum);
          }
        }
        static_cast<float*>(p.dtemperature)[index] = -sum / temperature_of(p, h, row(r, half));
      }
    }
  };
};

/// dK = sum_i c_i dS_i q_i and dV = sum_i P_i dO_i of a tile of keys, over all queries of all heads
/// that share them. Rows of the tiles of scores are keys here, columns queries.
template <class Shape>
struct BackwardKeyPass : Shape {
  using Params = BackwardParams;
  using Keys = KeysOf<Shape>;
  using Shape::kParts, Shape::kRowBytes, Shape::kStages, Shape::kStaying, Shape::kStreamed,
      Shape::kVaries;
  using typename Shape::Element;
  using Streamed = StreamedQueries<Shape>;
  using Memory = typename Streamed::Memory;
  using Rows = typename Memory::Rows;
  static constexpr int kThreads = Shape::kWarps * kWarp;
  static constexpr int kSharedBytes = Memory::kSharedBytes;
  static constexpr int kColumns = Shape::kWidth / kParts;

  static int64_t block_count(const Params& p) {
    return p.dk || p.dv ? p.batch * p.key_heads * tiles_of(p.keys, kStaying) * kParts : 0;
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const auto part = static_cast<int>(block % kParts);
    const auto tiles = static_cast<int>(tiles_of(p.keys, kStaying));
    const int64_t readers = Head<int64_t>::readers(p);
    const Head<int64_t> head(p, block / kParts / tiles * readers);
    const int first = static_cast<int>(block / kParts % tiles) * kStaying;
    // Under the causal rule the first keys are seen by most queries; they begin first.
    const Keys of_head(p, head.batch, head.head);
    const int first_query = of_head.first_query(first);
    const int queries = of_head.end_of_queries(first + kStaying - 1) - first_query;
    const int query_tiles = (at_least_zero(queries) + kStreamed - 1) / kStreamed;
    typename Streamed::Source source(p, head);
    const auto fetch = [&](int tile, int stage) {
      const int nth = quotient(tile, query_tiles), in_head = tile - nth * query_tiles;
      if (nth > 0 && in_head == 0) {  // not turn_to, which spills here
        Head<int64_t> reader = head;
        reader.head += nth;
        source = typename Streamed::Source(p, reader);
      }
      source.fetch(lane, first_query + in_head * kStreamed, stage);
    };
    fetch_rows<Element, kStaying, kThreads>(lane, Memory::first_staying(),
                                            key_rows<Element>(p, p.k, head), first);
    fetch_rows<Element, kStaying, kThreads>(lane, Memory::second_staying(),
                                            if_dout(p, key_rows<Element>(p, p.v, head)), first);
    lane.commit_copies();
    if (query_tiles > 0) fetch(0, 0);
    lane.commit_copies();
    lane.template wait_copies<1>();
    lane.barrier();
    round_rows<Element, 2 * kStaying, kThreads>(lane, Memory::first_staying());

    const int in_tile = warp_of(lane) * 16;
    Warp warp(lane, first + in_tile, in_tile, part);
    stream_tiles<kStages>(
        lane, query_tiles * static_cast<int>(readers), fetch, [&](int tile, int stage) {
          lane.thread = lane.fresh(lane.thread);
          round_rows<Element, kStreamed, kThreads>(lane, Memory::first(stage));
          round_rows<Element, kStreamed, kThreads>(lane, Memory::second(stage));
          const int nth = quotient(tile, query_tiles);
          Head<int64_t> reader = head;
          reader.head += nth;
          warp.take_queries(p, reader, lane, Keys(p, reader.batch, reader.head),
                            first_query + (tile - nth * query_tiles) * kStreamed, stage);
        });
    store(p, lane, head, first, in_tile, part, warp);
  }

 private:
  using Part = SharedRows<kRowBytes / kParts>;

  struct Warp {
    int first, first_block;
    StayingRows<1, kRowBytes, Shape::kKeysInRegisters> keys;
    StayingRows<1, kRowBytes, Shape::kInRegisters> values;
    float dk[1][kColumns / 8][4], dv[1][kColumns / 8][4];

    template <class Lane>
    AERO_DEVICE Warp(Lane& lane, int first_row, int in_tile, int part)
        : first(first_row),
          first_block(part * kColumns / 8),
          keys(lane, Memory::first_staying(), in_tile),
          values(lane, Memory::second_staying(), in_tile) {
      clear(dk);
      clear(dv);
    }

    template <class Lane>
    AERO_DEVICE void take_queries(const Params& p, const Head<int64_t>& h, Lane& lane,
                                  const Keys& visible, int query, int stage) {
      if (first >= visible.keys || first >= visible.end(query + kStreamed - 1)) return;
      if (visible.starts_after(query, first + 15)) return;
      const Rows queries = Memory::first(stage), douts = Memory::second(stage);
      float weights[1][kStreamed / 8][4], dscores[1][kStreamed / 8][4];
      multiply_rows<Element>(lane, weights, keys, queries);
      multiply_rows<Element>(lane, dscores, values, douts);
      if constexpr (kVaries)
        Streamed::weigh_varied(p, h, lane, visible, query, first, stage, weights, dscores);
      else
        Streamed::weigh(lane, visible, query, first, stage, weights, dscores,
                        [](int, const ScoreGradient&) {});
      add_weighted_rows<Element>(lane, dv, weights, douts, first_block);
      add_weighted_rows<Element>(lane, dk, dscores, queries, first_block);
    }
  };

  template <class Lane>
  AERO_DEVICE static void store(const Params& p, Lane& lane, const Head<int64_t>& head, int first,
                                int in_tile, int part, Warp& warp) {
    if (!p.dout) clear(warp.dv);  // a weight that is NaN times no gradient is none
    if constexpr (kVaries) {      // here, as float16 has no factor above 65,504
      const float kept = dropout_factor<float>(p.dropout);
      AERO_UNROLL
      for (auto& block : warp.dv[0]) AERO_UNROLL
      for (float& sum : block) sum *= kept;
    }
    const Part dk{0}, dv{kStaying * kRowBytes / kParts};
    store_sums<Element>(lane, dk, in_tile, warp.dk);
    store_sums<Element>(lane, dv, in_tile, warp.dv);
    lane.barrier();
    const auto copy_out = [&](const TensorView<void>& tensor, Part rows) {
      const auto all =
          rows_of<char>(tensor, head.batch, head.key_head, p.keys, p.head_dim, Element::kBytes);
      copy_out_rows<Element, kStaying, kThreads>(lane, columns_from<Element>(all, part * kColumns),
                                                 rows, first);
    };
    if (p.dk) copy_out(p.dk, dk);
    if (p.dv) copy_out(p.dv, dv);
  }
};

}  // namespace aero::kernels::cuda
