// Which keys a row sees, what its scores are scaled by, and what the tiles of attention have in
// common. Letters: ../attention_entropy.h.
#pragma once

#include <type_traits>

#include "kernels/attention_entropy.h"
#include "kernels/cuda/products.h"
#include "kernels/online_softmax.h"

namespace aero::kernels::cuda {

/// One of `batch * heads`, and the key head that goes with it. A division of 64 bits is a function
/// of its own, long for a block that has a tile or two: hence int. With it the split backward
/// passes take more registers (bfloat16, D = 96 on sm_86: 172, not 167, and a block fewer fits).
template <class Int>
struct Head {
  Int batch, head, key_head;

  AERO_DEVICE Head(const AttentionEntropyParams& p, Int index)
      : batch(index / static_cast<Int>(p.heads)),
        head(index % static_cast<Int>(p.heads)),
        key_head(head / readers(p)) {}

  /// How many heads share keys.
  AERO_DEVICE static Int readers(const AttentionEntropyParams& p) {
    return static_cast<Int>(p.heads) / static_cast<Int>(p.key_heads);
  }
};

/// Which keys mask and causal rule show to the queries of a head. Indices beyond the tensors are
/// seen by none.
struct CausalKeys {
  int queries, keys;
  int diagonal;  ///< query i sees keys j <= i + diagonal
  const bool* mask;
  int64_t query_stride, key_stride;

  AERO_DEVICE CausalKeys(const AttentionEntropyParams& p, int64_t batch, int64_t head)
      : queries(static_cast<int>(p.queries)),
        keys(static_cast<int>(p.keys)),
        diagonal(static_cast<int>(p.is_causal ? p.keys - p.queries : p.keys)),
        mask(nullptr),
        query_stride(p.mask.strides.row),
        key_stride(p.mask.strides.column) {
    const Strides& s = p.mask.strides;
    if (p.mask) mask = p.mask.data + batch * s.batch + head * s.head;
  }

  /// Whether they show all keys up to `key` to `query` and all after it.
  AERO_DEVICE bool show_all(int query, int key) const {
    return !mask && key < keys && key <= query + diagonal;
  }
  /// Keys [0, end) hold all that the causal rule shows to the queries up to `query`; negative where
  /// it shows none.
  AERO_DEVICE int end(int query) const {
    return smaller(keys, smaller(query, queries - 1) + diagonal + 1);
  }
  /// The first query that the causal rule shows `key` to.
  AERO_DEVICE int first_query(int key) const {
    return key < keys ? at_least_zero(key - diagonal) : queries;
  }
  /// The mask's value for a query and a key.
  AERO_DEVICE const bool* mask_at(int query, int key) const {
    return mask + query * query_stride + key * key_stride;
  }
};

/// Which keys the queries of a head see where there is no window.
struct VisibleKeys : CausalKeys {
  using CausalKeys::CausalKeys;

  /// Whether all queries from `query` to `last_query` see all keys from `first_key` to `key`.
  AERO_DEVICE bool sees_all(int query, int /*last_query*/, int /*first_key*/, int key) const {
    return show_all(query, key);
  }
  /// A window hides keys before this one from `query` and all after it.
  AERO_DEVICE static constexpr int begin(int /*query*/) { return 0; }
  /// Whether it hides `key` and all before it from them.
  AERO_DEVICE static constexpr bool starts_after(int /*query*/, int /*key*/) { return false; }
  /// Behind the last query that it shows `key` to.
  AERO_DEVICE int end_of_queries(int /*key*/) const { return queries; }
};

/// The common part of shapes of tiles: elements, and D rounded up.
template <class Element_, int kWidth_>
struct RowShape {
  using Element = Element_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kRowBytes = kWidth * Element::kBytes;
  static constexpr bool kVaries = false;  ///< attention_variants.h
};

/// Puts `value` where queries do not see keys. The warp's rows are queries from `query` on, its
/// columns keys from `key` on.
template <class Keys, int kRowTiles, int kBlocks, class Lane>
AERO_DEVICE void hide_keys(const Lane& lane, const Keys& visible, int query, int key,
                           float (&tile)[kRowTiles][kBlocks][4], float value) {
  key += 2 * member_of(lane);
  AERO_UNROLL
  for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = query + 16 * r + 8 * half + group_of(lane), seen = visible.end(row) - key;
    AERO_UNROLL
    for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
    for (int n = 0; n < 2; ++n)
      if (block * 8 + n >= seen) tile[r][block][2 * half + n] = value;
    if constexpr (!std::is_same_v<Keys, VisibleKeys>) {
      const int begin = visible.begin(row) - key;
      AERO_UNROLL
      for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
      for (int n = 0; n < 2; ++n)
        if (block * 8 + n < begin) tile[r][block][2 * half + n] = value;
    }
    if (!visible.mask || row >= visible.queries) continue;
    const bool* mask = visible.mask_at(row, key);
    AERO_UNROLL
    for (int block = 0; block < kBlocks; ++block, mask += 8 * visible.key_stride) AERO_UNROLL
    for (int n = 0; n < 2; ++n)
      if (block * 8 + n < seen && !mask[n * visible.key_stride])
        tile[r][block][2 * half + n] = value;
  }
}

/// The same where rows are keys from `key` on and columns queries from `query` on. Columns beyond
/// the last query stay as they are.
template <class Keys, int kRowTiles, int kBlocks, class Lane>
AERO_DEVICE void hide_queries(const Lane& lane, const Keys& visible, int query, int key,
                              float (&tile)[kRowTiles][kBlocks][4], float value) {
  query += 2 * member_of(lane);
  AERO_UNROLL
  for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = key + 16 * r + 8 * half + group_of(lane);
    const int first = visible.first_query(row) - query, end = visible.queries - query;
    AERO_UNROLL
    for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
    for (int n = 0; n < 2; ++n)
      if (block * 8 + n < first) tile[r][block][2 * half + n] = value;
    if constexpr (!std::is_same_v<Keys, VisibleKeys>) {
      const int shown = visible.end_of_queries(row) - query;
      AERO_UNROLL
      for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
      for (int n = 0; n < 2; ++n)
        if (block * 8 + n >= shown) tile[r][block][2 * half + n] = value;
    }
    if (!visible.mask || row >= visible.keys) continue;
    const bool* mask = visible.mask_at(query, row);
    AERO_UNROLL
    for (int block = 0; block < kBlocks; ++block, mask += 8 * visible.query_stride) AERO_UNROLL
    for (int n = 0; n < 2; ++n)
      if (block * 8 + n < end && !mask[n * visible.query_stride])
        tile[r][block][2 * half + n] = value;
  }
}

/// Index in a contiguous [B, H, T] tensor.
template <class Int>
AERO_DEVICE int64_t row_index(const AttentionEntropyParams& p, const Head<Int>& h, int query) {
  return (h.batch * p.heads + h.head) * p.queries + query;
}

template <class Int>
AERO_DEVICE float temperature_of(const AttentionEntropyParams& p, const Head<Int>& h, int query) {
  const Strides& s = p.temperature.strides;
  if (!p.temperature) return 1;
  return static_cast<const float*>(
      p.temperature.data)[h.batch * s.batch + h.head * s.head + query * s.row];
}
AERO_DEVICE float score_scale(const AttentionEntropyParams& p) {
  return static_cast<float>(p.scale * kLog2E);
}

/// The tensors of a head.
template <class Element, class Int>
AERO_DEVICE TensorRows<const char> query_rows(const AttentionEntropyParams& p,
                                              const TensorView<const void>& tensor,
                                              const Head<Int>& h) {
  return rows_of<const char>(tensor, h.batch, h.head, p.queries, p.head_dim, Element::kBytes);
}
template <class Element, class Int>
AERO_DEVICE TensorRows<const char> key_rows(const AttentionEntropyParams& p,
                                            const TensorView<const void>& tensor,
                                            const Head<Int>& h) {
  return rows_of<const char>(tensor, h.batch, h.key_head, p.keys, p.head_dim, Element::kBytes);
}

/// Walks tiles that stream through shared memory: copies of the next one run while this one is
/// used, where there are two stages. use(tile, stage) is called for each, fetch(tile, stage) before
/// that, and all lanes of the block go through all of it together.
template <int kStages, class Lane, class Fetch, class Use>
AERO_DEVICE void stream_tiles(Lane& lane, int tiles, Fetch fetch, Use use) {
  for (int tile = 0; tile < tiles; ++tile) {
    lane.template wait_copies<0>();
    lane.barrier();  // this tile is there, and the stage before it free
    if (kStages == 2 && tile + 1 < tiles) {
      fetch(tile + 1, (tile + 1) % kStages);
      lane.commit_copies();
    }
    use(tile, tile % kStages);
    if (kStages == 1 && tile + 1 < tiles) {
      lane.barrier();
      fetch(tile + 1, 0);
      lane.commit_copies();
    }
  }
  lane.barrier();
}

}  // namespace aero::kernels::cuda
