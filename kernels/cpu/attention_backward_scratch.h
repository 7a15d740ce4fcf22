// The scratch memory of attention's backward pass.
#pragma once

#include "kernels/cpu/attention_weighted_rows.h"

namespace aero::kernels::cpu {
namespace {

/// Scratch of one thread, as offsets in elements of Real (an operand takes no more). Row-major
/// copies have rows of whole vectors.
template <class Operands>
struct BackwardScratch {
  using Real = typename Operands::Real;
  static constexpr int kTile = kQueryTile<Real>, kPack = Operands::kPack;

  int64_t row, value_row;            ///< length of such a row of D and of Dv
  int64_t queries_t, douts_t;        ///< operands [D / kPack, tile] and [Dv / kPack, tile]
  int64_t queries, douts;            ///< operands [tile / kPack, row] and [tile / kPack, value_row]
  int64_t dqueries;                  ///< sums of WeightedRows; before, [tile, Dv] elements of dO
  int64_t scores, dweights;          ///< [keys, tile]: S, dP
  int64_t weight_rows, dscore_rows;  ///< operands [keys, tile / kPack]: P, c dS
  int64_t dscores;                   ///< operands [keys / kPack, tile]: c dS
  int64_t cap_slopes;                ///< [keys, tile], of the soft cap
  int64_t dbias;                     ///< [keys, tile]: dS, where the bias has a gradient
  int64_t keys, packed_keys, values, dkeys, dvalues, total = 0;

  explicit BackwardScratch(const AttentionEntropyBackwardParams& p)
      : row(round_up(p.head_dim, kLanes<Real>)), value_row(round_up(p.value_dim, kLanes<Real>)) {
    queries_t = take(row * kTile);
    douts_t = take(value_row * kTile);
    queries = take(row * kTile);
    douts = take(value_row * kTile);
    dqueries = take(larger(WeightedRows<Operands>::size(p.head_dim), value_row * kTile));
    scores = take(kKeyTile * kTile);
    dweights = take(kKeyTile * kTile);
    // Numbers take the place of those they are computed from; pairs need room of their own.
    weight_rows = kPack == 1 ? scores : take(kKeyTile * kTile / kPack);
    dscore_rows = kPack == 1 ? dweights : take(kKeyTile * kTile / kPack);
    dscores = kPack == 1 ? dweights : take(kKeyTile * kTile / kPack);
    cap_slopes = take(p.softcap != 0 ? kKeyTile * kTile : 0);
    dbias = take(p.dbias ? kKeyTile * kTile : 0);
    keys = take(p.keys * row);
    packed_keys = kPack == 1 ? keys : take(Operands::weighted_size(p.keys, p.head_dim));
    values = take(p.keys * value_row);
    dkeys = take(p.keys * row);
    dvalues = take(p.keys * value_row);
  }
  int64_t take(int64_t count) {
    const int64_t at = total;
    total += round_up(count, 64);
    return at;
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
