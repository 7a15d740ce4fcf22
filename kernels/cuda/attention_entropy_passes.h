// Which passes do a call: the same choice for the kernels and for their emulation.
#pragma once

#include "kernels/cuda/attention_backward_heads.h"
#include "kernels/cuda/attention_entropy_backward.h"
#include "kernels/cuda/attention_entropy_forward.h"

namespace aero::kernels::cuda {

template <int kValue>
struct Width {
  static constexpr int value = kValue;
};

/// Calls visit(Width<n>) with the head width rounded up to one that there are kernels for.
template <class Visit>
void with_width(int64_t head_dim, Visit visit) {
  if (head_dim <= 32)
    visit(Width<32>{});
  else if (head_dim <= 64)
    visit(Width<64>{});
  else if (head_dim <= 96)
    visit(Width<96>{});
  else if (head_dim <= 128)
    visit(Width<128>{});
  else
    visit(Width<256>{});
}

/// The same for calls that vary, for which there are fewer kernels.
template <class Visit>
void with_varied_width(int64_t head_dim, Visit visit) {
  if (head_dim <= 64)
    visit(Width<64>{});
  else if (head_dim <= 128)
    visit(Width<128>{});
  else
    visit(Width<256>{});
}

/// Calls visit(Chosen<Pass>) with the pass that does the forward direction.
template <class Element, class Visit>
void with_forward_pass(const AttentionEntropyForwardParams& p, Visit visit) {
  if (varies(p))
    return with_varied_width(p.head_dim, [&](auto width) {
      using Shape = Varied<ForwardShape<Element, decltype(width)::value>>;
      visit(Chosen<ForwardPass<Shape>>{});
    });
  with_width(p.head_dim, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    if constexpr (kWidth * Element::kBytes <= 128 && Element::kBytes == 2) {
      using Short = ShortForwardShape<Element, kWidth>;
      if (p.queries <= Short::kQueries && p.keys <= Short::kKeys)
        return visit(Chosen<ForwardPass<Short>>{});
    }
    visit(Chosen<ForwardPass<ForwardShape<Element, kWidth>>>{});
  });
}

/// How the backward direction is done where it is not chosen by size.
enum class BackwardScheme { kBySize, kHeads, kSplit };

/// Wider heads do not leave registers for two tiles of 16 keys a warp, nor the L2 cache room for
/// what then goes through it.
inline constexpr int kMaxHeadPassWidth = 64;
/// Beyond this many keys, or queries in all heads that share them, the L2 cache does not have room
/// for the queries and sums of all blocks.
inline constexpr int64_t kMaxHeadPassPositions = 2048;
/// Tiles of queries, in all heads that share keys, whose sums a block can number with 32 bits.
inline constexpr int64_t kMaxHeadPassTiles = 4'194'304;
/// Blocks of the pass that fit on a multiprocessor.
inline constexpr int kHeadPassResidents = 2;

/// How many blocks do whole heads in the backward direction, or 0 where the split passes do it, as
/// they do all calls that vary.
///
/// A block does one head of keys at a time, all blocks begin together, and the last round of heads
/// leaves multiprocessors idle. Five products in so many rounds are weighed against seven products
/// that are shared evenly.
inline int64_t head_blocks_for(const AttentionEntropyBackwardParams& p, int multiprocessors,
                               BackwardScheme scheme = BackwardScheme::kBySize) {
  const bool is_half = p.data_type == DataType::kBFloat16 || p.data_type == DataType::kFloat16;
  if (scheme == BackwardScheme::kSplit || !is_half || p.head_dim > kMaxHeadPassWidth || varies(p))
    return 0;
  const int64_t heads = p.batch * p.key_heads;
  if (heads == 0) return 0;
  const int64_t readers = p.heads / p.key_heads;
  if (readers * tiles_of(p.queries, HeadShape<BFloat16, 64>::kStreamed) > kMaxHeadPassTiles)
    return 0;
  const int residents = kHeadPassResidents * multiprocessors;
  if (scheme == BackwardScheme::kBySize) {
    const int64_t queries = readers * p.queries;
    if (queries > kMaxHeadPassPositions || p.keys > kMaxHeadPassPositions) return 0;
    if (5 * tiles_of(heads, residents) * residents > 7 * heads) return 0;
  }
  return heads < residents ? heads : residents;
}

/// Calls visit(Chosen<Pass>) with the pass that does whole heads.
template <class Element, class Visit>
void with_head_pass(const AttentionEntropyBackwardParams& p, Visit visit) {
  if (p.head_dim <= 32)
    visit(Chosen<BackwardHeadPass<HeadShape<Element, 32>>>{});
  else
    visit(Chosen<BackwardHeadPass<HeadShape<Element, kMaxHeadPassWidth>>>{});
}

/// Calls visit(Chosen<Pass>) with the passes of the backward direction, in their order.
template <class Element, class Visit>
void for_backward_passes(const AttentionEntropyBackwardParams& p, Visit visit) {
  if (varies(p)) {
    visit(Chosen<BackwardRowsPass<Element, true>>{});
    return with_varied_width(p.head_dim, [&](auto width) {
      using Shape = Varied<BackwardShape<Element, decltype(width)::value>>;
      visit(Chosen<BackwardQueryPass<Shape>>{});
      visit(Chosen<BackwardKeyPass<Shape>>{});
    });
  }
  visit(Chosen<BackwardRowsPass<Element>>{});
  if constexpr (Element::kBytes == 2)
    if (p.head_blocks > 0) return with_head_pass<Element>(p, visit);
  with_width(p.head_dim, [&](auto width) {
    using Shape = BackwardShape<Element, decltype(width)::value>;
    visit(Chosen<BackwardQueryPass<Shape>>{});
    visit(Chosen<BackwardKeyPass<Shape>>{});
  });
}

/// Size of the scratch memory of the backward direction.
inline int64_t backward_bytes(const AttentionEntropyBackwardParams& p) {
  int64_t bytes = RowTable::bytes(p);
  if (p.head_blocks > 0)
    with_head_pass<BFloat16>(
        p, [&](auto chosen) { bytes += p.head_blocks * decltype(chosen)::Pass::sum_bytes(p); });
  return bytes;
}

}  // namespace aero::kernels::cuda
