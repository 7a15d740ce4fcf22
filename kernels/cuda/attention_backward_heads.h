// Backward pass of attention with temperature and entropy where a block does whole heads of keys:
// scores, dP, dV, dK and dQ in five products, where the split passes take seven. Equations:
// ../online_softmax.h.
//
// A tile of keys stays, queries stream by; dV and dK are summed in registers as in BackwardKeyPass.
// Gradients of scores also go to shared memory, where the warps multiply them with the keys: this
// tile's share of dQ. Shares are added up in scratch memory, where a thread reads and writes only
// what is its own, one tile of keys after the other: no atomics, no fences, and bitwise the same
// run to run. The last tile of keys that a query sees writes its dQ.
#pragma once

#include "kernels/cuda/attention_backward_tiles.h"

namespace aero::kernels::cuda {

/// Sizes of tiles; see ForwardShape. A warp has two tiles of 16 keys, so that what it loads of
/// queries serves both; and two blocks fit on a multiprocessor of sm_80 and of sm_90, so that one
/// multiplies while the other waits.
template <class Element_, int kWidth_>
struct HeadShape : RowShape<Element_, kWidth_> {
  static constexpr int kWarps = 4;
  static constexpr int kRowTiles = 2;
  static constexpr int kStaying = 16 * kRowTiles * kWarps;
  static constexpr int kStreamed = 32;
  static constexpr int kStages = 2;
  static constexpr bool kInRegisters = false;
};

/// dQ, dK, dV and dtemperature of the heads that share keys.
template <class Shape>
struct BackwardHeadPass : Shape {
  using Params = BackwardParams;
  using Shape::kRowTiles, Shape::kStaying, Shape::kStreamed, Shape::kWarps, Shape::kWidth;
  using typename Shape::Element;
  using Streamed = StreamedQueries<Shape>;
  using Memory = typename Streamed::Memory;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRowSumBase = Memory::kSharedBytes + kStaying * kStreamed * Element::kBytes;
  static constexpr int kSharedBytes = kRowSumBase + kWarps * kStreamed * 4;

  static int64_t block_count(const Params& p) {
    const int64_t heads = p.batch * p.key_heads;
    if (!p.dq && !p.dk && !p.dv && !p.dtemperature) return 0;
    return p.head_blocks < heads ? p.head_blocks : heads;
  }

  /// Scratch memory of a block for sums of dQ; a single tile of keys needs none.
  static constexpr int64_t sum_bytes(const AttentionEntropyParams& p) {
    if (p.key_heads == 0 || p.keys <= kStaying) return 0;
    return p.heads / p.key_heads * tiles_of(p.queries, kStreamed) * kStreamed * kWidth * 4;
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    char* sums = static_cast<char*>(p.workspace) + RowTable::bytes(p) + block * sum_bytes(p);
    const auto heads = static_cast<int>(p.batch * p.key_heads);
    const auto blocks = static_cast<int>(p.head_blocks);
    for (auto n = static_cast<int>(block); n < heads; n += blocks) {
      const Head<int> head(p, n * Head<int>::readers(p));
      AERO_ROLLED
      for (int first = 0; first == 0 || first < p.keys; first += kStaying)
        take_keys(p, lane, head, first, reinterpret_cast<Sums*>(sums));
    }
  }

 private:
  using M = Matrix<Element>;
  /// Gradients of scores: a row for each key, as they lie in the registers.
  using Dscores = SharedRows<kStreamed * Element::kBytes>;
  AERO_DEVICE static Dscores dscore_rows() { return {Memory::kSharedBytes}; }
  struct alignas(16) Sums {
    float values[4];
  };

  /// A tile of queries beside the tile of keys.
  struct Pair {
    Head<int> head;
    int query;               ///< the first
    bool is_first, is_last;  ///< tile of keys for these queries
  };

  /// A tile of keys from `first` on, and all queries that see any of it.
  template <class Lane>
  AERO_DEVICE static void take_keys(const Params& p, Lane& lane, const Head<int>& head, int first,
                                    Sums* sums) {
    const VisibleKeys of_head(p, head.batch, head.head);
    const auto tiles = static_cast<int>(tiles_of(p.queries, kStreamed));
    // The first tile of keys also takes the queries that see no key: their gradients are 0.
    const int left_out = first == 0 ? 0 : of_head.first_query(first) / kStreamed;
    const int taken = tiles - left_out, pairs = taken * Head<int>::readers(p);
    // Back and forth: the tile used last comes first, while the L2 cache still has it.
    const auto pair_at = [&](int n) {
      const int turned = first / kStaying % 2 == 0 ? n : pairs - 1 - n;
      const int nth = quotient(turned, taken);
      const int query = (left_out + turned - nth * taken) * kStreamed;
      Pair pair{head, query, first == 0, of_head.end(query + kStreamed - 1) <= first + kStaying};
      pair.head.head += nth;
      return pair;
    };
    typename Streamed::Source source(p, head);
    const auto fetch = [&](int n, int stage) {
      const Pair pair = pair_at(n);
      source.turn_to(p, pair.head);
      source.fetch(lane, pair.query, stage);
    };
    fetch_rows<Element, kStaying, kThreads>(lane, Memory::first_staying(),
                                            key_rows<Element>(p, p.k, head), first);
    fetch_rows<Element, kStaying, kThreads>(lane, Memory::second_staying(),
                                            if_dout(p, key_rows<Element>(p, p.v, head)), first);
    if (pairs > 0) fetch(0, 0);
    lane.commit_copies();
    lane.template wait_copies<0>();

    Warp warp(lane, first);
    stream_tiles<Shape::kStages>(lane, pairs, fetch, [&](int n, int stage) {
      warp.take_queries(p, lane, pair_at(n), stage);
      // Computed anew: kept in registers meanwhile, it would drive others out of them.
      const Pair pair = pair_at(lane.fresh(n));
      const int tile = (pair.head.head - head.head) * tiles + pair.query / kStreamed;
      Share share(lane, sums + tile * (kStreamed * kWidth / 4));
      const float before = row_sum_before(p, lane, pair);
      if (p.dq && !pair.is_first) share.read();
      lane.barrier();  // gradients of scores are there, and nobody needs the queries any more
      if (p.dq) {
        share.multiply(lane, of_head.end(pair.query + share.row + 15) - first);
        if (pair.is_last)
          store_dq(p, lane, pair, stage, share);
        else
          share.write();
      }
      if (p.dtemperature) add_row_sums(p, lane, pair, stage, before);
    });
    store(p, lane, head, first, warp);
  }

  /// dK and dV of 32 keys.
  struct Warp {
    int first, in_tile;
    float dk[kRowTiles][kWidth / 8][4], dv[kRowTiles][kWidth / 8][4];

    template <class Lane>
    AERO_DEVICE Warp(const Lane& lane, int first_of_block)
        : first(first_of_block + warp_of(lane) * 16 * kRowTiles),
          in_tile(warp_of(lane) * 16 * kRowTiles) {
      clear(dk);
      clear(dv);
    }

    template <class Lane>
    AERO_DEVICE void take_queries(const Params& p, Lane& lane, const Pair& pair, int stage) {
      using Staying = StayingRows<kRowTiles, Shape::kRowBytes, false>;
      const VisibleKeys visible(p, pair.head.batch, pair.head.head);
      if (first >= visible.end(pair.query + kStreamed - 1)) {
        store_row_sum(p, lane, 0.0f);
        return;
      }
      const auto queries = Memory::first(stage), douts = Memory::second(stage);
      float weights[kRowTiles][kStreamed / 8][4], dscores[kRowTiles][kStreamed / 8][4];
      multiply_rows<Element>(lane, weights, Staying(lane, Memory::first_staying(), in_tile),
                             queries);
      multiply_rows<Element>(lane, dscores, Staying(lane, Memory::second_staying(), in_tile),
                             douts);
      float row_sums[kStreamed / 4] = {};
      Streamed::weigh(lane, visible, pair.query, first, lane.fresh(stage), weights, dscores,
                      [&](int column, const ScoreGradient& of) {
                        row_sums[column] = __builtin_fmaf(of.dscore, of.z, row_sums[column]);
                      });
      lane.thread = lane.fresh(lane.thread);
      store_dscores(lane, dscores);
      store_row_sum(p, lane, p.dtemperature ? sum_over_groups(lane, row_sums) : 0.0f);
      add_weighted_rows<Element>(lane, dv, weights, douts, 0);
      add_weighted_rows<Element>(lane, dk, dscores, queries, 0);
    }

    /// Rows that are 8 apart are swizzled alike: one address for each block of columns.
    template <class Lane>
    AERO_DEVICE void store_dscores(Lane& lane,
                                   const float (&dscores)[kRowTiles][kStreamed / 8][4]) const {
      AERO_UNROLL
      for (int block = 0; block < kStreamed / 8; ++block) {
        const int at = dscore_rows().chunk(in_tile + group_of(lane), block) + member_of(lane) * 4;
        AERO_UNROLL
        for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float* pair = &dscores[r][block][2 * half];
          const uint32_t word[1] = {Lane::pack(Element{}, pair[0], pair[1])};
          lane.store_words(at + (16 * r + 8 * half) * Dscores::kChunks * 16, word);
        }
      }
    }

    /// sum_j dS z over this warp's keys, of the query that sum_over_groups leaves with this lane.
    template <class Lane>
    AERO_DEVICE static void store_row_sum(const Params& p, Lane& lane, float sum) {
      static_assert(kStreamed == kWarp, "one query a lane");
      if (!p.dtemperature) return;
      const int group = group_of(lane), row = group / 2 * 8 + member_of(lane) * 2 + group % 2;
      const uint32_t word[1] = {__builtin_bit_cast(uint32_t, sum)};
      lane.store_words(kRowSumBase + (warp_of(lane) * kStreamed + row) * 4, word);
    }
  };

  /// A warp's part of a tile of dQ: 16 rows, and as many columns as the warps then have each.
  struct Share {
    static constexpr int kRowParts = kStreamed / 16, kColumnParts = kWarps / kRowParts;
    static constexpr int kBlocks = kWidth / 8 / kColumnParts;
    Sums* memory;
    int row, first_block;
    float before[kBlocks][4], sums[kBlocks][4];

    template <class Lane>
    AERO_DEVICE Share(const Lane& lane, Sums* of_tile)
        : memory(of_tile + lane.thread),
          row(warp_of(lane) % kRowParts * 16),
          first_block(warp_of(lane) / kRowParts * kBlocks) {
      AERO_UNROLL
      for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
      for (int n = 0; n < 4; ++n) before[block][n] = sums[block][n] = 0;
    }

    AERO_DEVICE void read() {
      AERO_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        const Sums kept = memory[block * kThreads];
        AERO_UNROLL
        for (int n = 0; n < 4; ++n) before[block][n] = kept.values[n];
      }
    }
    AERO_DEVICE void write() const {
      AERO_UNROLL
      for (int block = 0; block < kBlocks; ++block)
        memory[block * kThreads] = {
            {sums[block][0], sums[block][1], sums[block][2], sums[block][3]}};
    }

    /// The product with a warp's keys.
    template <class Lane>
    AERO_DEVICE void add_product(Lane& lane, int key) {
      AERO_UNROLL
      for (int step = 0; step < 16 * kRowTiles; step += M::kStep) {
        uint32_t a[4], b[4];
        load_left_of_columns(lane, a, dscore_rows(), key + step, row / 8);
        AERO_UNROLL
        for (int block = 0; block < kBlocks; block += 2) {
          M::right_of_columns(lane, b, Memory::first_staying(), key + step, first_block + block);
          M::multiply(lane, sums[block], a, b[0], b[1]);
          M::multiply(lane, sums[block + 1], a, b[2], b[3]);
        }
      }
    }

    /// Adds the product with the first `keys` keys of the tile, which these rows see.
    template <class Lane>
    AERO_DEVICE void multiply(Lane& lane, int keys) {
      if (keys >= kStaying) {
        AERO_UNROLL
        for (int key = 0; key < kStaying; key += 16 * kRowTiles) add_product(lane, key);
      } else {
        AERO_ROLLED
        for (int key = 0; key < keys; key += 16 * kRowTiles) add_product(lane, key);
      }
      AERO_UNROLL
      for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
      for (int n = 0; n < 4; ++n) sums[block][n] += before[block][n];
    }
  };

  template <class Lane>
  AERO_DEVICE static void store_dq(const Params& p, Lane& lane, const Pair& pair, int stage,
                                   const Share& share) {
    const auto rows = Memory::first(stage);
    AERO_UNROLL
    for (int block = 0; block < Share::kBlocks; ++block) AERO_UNROLL
    for (int half = 0; half < 2; ++half)
      M::store_sums(lane, rows, share.row + 8 * half + group_of(lane), share.first_block + block,
                    share.sums[block][2 * half], share.sums[block][2 * half + 1]);
    lane.barrier();  // all rows are there
    copy_out_rows<Element, kStreamed, kThreads>(
        lane,
        rows_of<char>(p.dq, pair.head.batch, pair.head.head, p.queries, p.head_dim,
                      Element::kBytes),
        rows, pair.query);
  }

  /// Whether this lane has a row of the tile; those of the last warp do, which under the causal
  /// rule has the least to do otherwise.
  template <class Lane>
  AERO_DEVICE static bool has_row(const Params& p, const Lane& lane, const Pair& pair) {
    return warp_of(lane) == kWarps - 1 && pair.query + lane.thread % kWarp < p.queries;
  }
  template <class Lane>
  AERO_DEVICE static float* row_sum(const Params& p, const Lane& lane, const Pair& pair) {
    return static_cast<float*>(p.dtemperature) +
           row_index(p, pair.head, pair.query + lane.thread % kWarp);
  }

  /// Of the tiles of keys before this one. They are kept where the result will be.
  template <class Lane>
  AERO_DEVICE static float row_sum_before(const Params& p, const Lane& lane, const Pair& pair) {
    const bool is_there = p.dtemperature && !pair.is_first && has_row(p, lane, pair);
    return is_there ? *row_sum(p, lane, pair) : 0.0f;
  }

  /// dt = -(1/t) (sum_j dS z + (logsumexp - entropy) gL)
  template <class Lane>
  AERO_DEVICE static void add_row_sums(const Params& p, Lane& lane, const Pair& pair, int stage,
                                       float sum) {
    if (warp_of(lane) != kWarps - 1) return;
    const int in_tile = lane.thread % kWarp, query = pair.query + in_tile;
    AERO_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      uint32_t word[1];
      lane.load_words(word, kRowSumBase + (warp * kStreamed + in_tile) * 4);
      sum += __builtin_bit_cast(float, word[0]);
    }
    const auto weights = Streamed::weights_of(lane, stage, in_tile);
    if (!has_row(p, lane, pair)) return;
    if (pair.is_last) {
      // logsumexp - entropy
      const float mean_score = static_cast<float>(kLn2) * weights.maximum - weights.offset;
      if (p.dlogsumexp && weights.inverse_sum != 0)
        sum += mean_score * static_cast<const float*>(p.dlogsumexp)[row_index(p, pair.head, query)];
      sum = -sum / temperature_of(p, pair.head, query);
    }
    *row_sum(p, lane, pair) = sum;
  }

  template <class Lane>
  AERO_DEVICE static void store(const Params& p, Lane& lane, const Head<int>& head, int first,
                                Warp& warp) {
    if (!p.dout) clear(warp.dv);
    const auto dk = Memory::first_staying(), dv = Memory::second_staying();
    store_sums<Element>(lane, dk, warp.in_tile, warp.dk);
    store_sums<Element>(lane, dv, warp.in_tile, warp.dv);
    lane.barrier();
    const auto copy_out = [&](const TensorView<void>& tensor, auto rows) {
      copy_out_rows<Element, kStaying, kThreads>(
          lane,
          rows_of<char>(tensor, head.batch, head.key_head, p.keys, p.head_dim, Element::kBytes),
          rows, first);
    };
    if (p.dk) copy_out(p.dk, dk);
    if (p.dv) copy_out(p.dv, dv);
    // The next tile of keys comes where these rows are. Each thread then overwrites what it read
    // itself, but PTX orders asynchronous copies after reads by barriers alone.
    lane.barrier();
  }
};

}  // namespace aero::kernels::cuda
