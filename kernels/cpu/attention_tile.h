// The common part of attention's forward and backward pass: one tile of queries against one tile
// of keys, queries in the vector lanes.
//
// A tile of scores is [keys x queries]. With one query per lane, everything that belongs to a row
// of the attention matrix (maximum, sums, temperature, gradients of entropy) is a plain vector:
// there is no horizontal reduction and no scalar code per row. Keys and values are read in place;
// only query rows are transposed, once per tile.
#pragma once

#include "kernels/attention_entropy.h"
#include "kernels/cpu/operands.h"
#include "kernels/online_softmax.h"

namespace aero::kernels::cpu {
namespace {

/// Keys per tile: with D = 64 and 64 queries, scores, queries and outputs take 48 KiB and the keys
/// stream from L2. Tiles of 32 to 128 differ by 2-3 %.
constexpr int kKeyTile = 64;

/// Fetches rows that the next tile will need, a few lines at a time while this one computes.
/// Without it a head's first touch of its rows waits for L3 or memory.
class Prefetch {
 public:
  /// `rows` rows of `columns` elements from row `first` of a head; nothing if there is no tensor.
  template <class Element, class T>
  void add(const TensorView<T>& tensor, int64_t b, int64_t h, int64_t first, int64_t rows,
           int64_t columns) {
    if (tensor) add(rows_at<const Element>(tensor, b, h, first), rows, columns);
  }
  template <class Element>
  void add(Matrix<const Element> from, int64_t rows, int64_t columns) {
    item_.add(from, rows, columns);
  }
  /// Spreads what was added over the rows of products to come.
  void spread(int64_t rows) { item_.spread(rows); }

  /// The same of rows that the next tile of keys reads, spread over the scores of this one.
  template <class Element>
  void add_for_next_keys(Matrix<const Element> from, int64_t rows, int64_t columns) {
    keys_ = {};
    keys_.add(from, rows, columns);
    keys_.spread(kKeyTile);
  }

  /// Before a group of `rows` rows of a product.
  AERO_INLINE void step(int rows) {
    item_.step(rows);
    if (keys_.has_any()) keys_.step(rows);
  }

 private:
  template <int kMost>
  class Ranges {
   public:
    template <class Element>
    void add(Matrix<const Element> from, int64_t rows, int64_t columns) {
      if (rows <= 0) return;
      const auto* data = reinterpret_cast<const char*>(from.data);
      const int64_t stride = from.stride * static_cast<int64_t>(sizeof(Element));
      int64_t bytes = columns * static_cast<int64_t>(sizeof(Element));
      if (stride == bytes) bytes *= rows, rows = 1;
      if (stride == 0) rows = 1;
      const int64_t lines = (bytes + kLine - 1) / kLine;
      ranges_[count_++] = {data, stride, rows, lines, lines};
      lines_ += rows * lines;
    }
    void spread(int64_t rows) {
      const int64_t steps = rows / kRows;
      per_step_ = steps > 0 ? (lines_ + steps - 1) / steps : 0;
    }
    bool has_any() const { return per_step_ > 0; }
    AERO_INLINE void step(int rows) {
      int64_t due = rows < kRows ? per_step_ : rows / kRows * per_step_;
      while (due > 0 && next_ < count_) {
        Range& range = ranges_[next_];
        const int64_t now = smaller(due, range.left);
        const char* line = range.data + (range.lines - range.left) * kLine;
        for (int64_t n = 0; n < now; ++n) __builtin_prefetch(line + n * kLine, 0, 3);
        due -= now;
        range.left -= now;
        if (range.left > 0) continue;
        range.data += range.stride;
        range.left = range.lines;
        if (--range.rows == 0) ++next_;
      }
    }

   private:
    static constexpr int64_t kLine = 64;
    struct Range {
      const char* data;  ///< a row
      int64_t stride, rows, lines, left;
    };
    Range ranges_[kMost];
    int count_ = 0, next_ = 0;
    int64_t lines_ = 0, per_step_ = 0;
  };
  Ranges<9> item_;
  Ranges<1> keys_;
};

/// A tile of queries of one head.
template <class Real>
struct TileRange {
  int64_t batch, head, first, count;  ///< rows [first, first + count)

  TileRange(const AttentionEntropyParams& p, int64_t b, int64_t h, int64_t tile)
      : batch(b),
        head(h),
        first(tile * kQueryTile<Real>),
        count(smaller(kQueryTile<Real>, p.queries - first)) {}

  /// Keys [first_key, visible_keys) hold all that causal rule and window show to any row of the
  /// tile, in whole groups of rows: what one tile reaches of a group, it reaches of all.
  int64_t visible_keys(const AttentionEntropyParams& p) const {
    const int64_t seen = larger(0, first + count + p.keys - p.queries + p.reach());
    return p.ends() ? smaller(p.keys, round_up(seen, kRows)) : p.keys;
  }
  /// In whole tiles of keys.
  int64_t first_key(const AttentionEntropyParams& p) const {
    const int64_t seen = first + p.keys - p.queries - p.window_left;
    return p.window_left < 0 ? 0 : larger(0, seen) / kKeyTile * kKeyTile;
  }
};

/// A tile of queries with the scale of its scores.
template <class Real>
struct QueryTile : TileRange<Real> {
  int vectors;                   ///< vectors that hold at least one query
  Real scale[kQueryTile<Real>];  ///< scale / t, 0 beyond count
  /// What products are multiplied by: log2(e) scale / t, or product_scale() where more follows.
  Real product_scale[kQueryTile<Real>];
  Real temperature[kQueryTile<Real>];  ///< t, 1 beyond count
  bool has_tiny_scale = false;         ///< one whose products with gradients may be subnormal

  QueryTile(const AttentionEntropyParams& p, const TileRange<Real>& range)
      : TileRange<Real>(range),
        vectors(static_cast<int>((range.count + kLanes<Real> - 1) / kLanes<Real>)) {
    for (Real& t : temperature) t = 1;
    if (p.temperature) {
      const auto rows = rows_at<const Real>(p.temperature, this->batch, this->head, this->first);
      for (int64_t i = 0; i < this->count; ++i) temperature[i] = *rows.row(i);
    }
    // In double: an error in the scale is one in the temperature, seen by all scores alike.
    for (int64_t i = 0; i < kQueryTile<Real>; ++i) {
      const double c = p.scale / static_cast<double>(temperature[i]);
      scale[i] = static_cast<Real>(c);
      has_tiny_scale = has_tiny_scale || (-0x1p-40 < c && c < 0x1p-40);
      product_scale[i] = static_cast<Real>(p.transforms() ? p.product_scale() : c * kLog2E);
    }
    for (int64_t i = this->count; i < kQueryTile<Real>; ++i) scale[i] = product_scale[i] = 0;
  }
  /// Index of row i in a contiguous [B, H, T] tensor.
  int64_t row(const AttentionEntropyParams& p, int64_t i) const {
    return (this->batch * p.heads + this->head) * p.queries + this->first + i;
  }
};

/// Calls store(at, value) for all that the forward pass keeps of row `row` of [B, H, T].
template <class Real, class Value, class Store>
void store_row_result(const AttentionEntropyForwardParams& p, int64_t row,
                      const RowResult<Value>& result, Store&& store) {
  store(static_cast<Real*>(p.entropy) + row, result.entropy);
  store(static_cast<Real*>(p.logsumexp) + row, result.logsumexp);
  if (!p.statistics) return;
  // [B, H, 3, T]
  Real* saved = static_cast<Real*>(p.statistics) + row +
                (kSavedStatistics - 1) * p.queries * (row / p.queries);
  store(saved, result.saved_maximum);
  store(saved + p.queries, result.saved_sum);
  store(saved + 2 * p.queries, result.saved_offset);
}

/// Which scores of a [keys x queries] tile are needed, and which of those are hidden.
template <class Real>
struct Visibility {
  int64_t count;            ///< keys of the tile
  int64_t diagonal;         ///< query i sees no key above i + diagonal
  int64_t end[kColumns];    ///< rows [0, end[v]) of vector v are computed; ascending in v
  int64_t masked;           ///< rows from here on consult `bits`
  bool hides_any;           ///< by a mask or behind a window
  uint64_t bits[kKeyTile];  ///< bit i of row j: query i sees key j

  Visibility(const AttentionEntropyParams& p, const QueryTile<Real>& q, int64_t key,
             int64_t key_end)
      : count(smaller(kKeyTile, key_end - key)),
        diagonal(p.ends() ? q.first + p.keys - p.queries + p.reach() - key : count) {
    for (int v = 0; v < kColumns; ++v) {
      const int64_t seen = (v + 1) * kLanes<Real> + diagonal;
      // Whole groups of rows, so that a group has one set of vectors.
      end[v] = smaller(count, round_up(larger(seen, 0), kRows));
    }
    // As much earlier than the first hidden score as a group of rows may be longer than kRows.
    const int64_t first_group = larger(diagonal + 1 - (kMostRows - kRows), 0);
    masked = p.ends() ? smaller(count, first_group / kRows * kRows) : count;
    // Query i sees no key below i + begin.
    const int64_t begin =
        p.window_left < 0 ? -kKeyTile : q.first + p.keys - p.queries - p.window_left - key;
    const int64_t hidden = smaller(count, begin + q.count - 1);
    hides_any = p.mask || hidden > 0;
    if (hides_any) masked = 0;
    for (int64_t j = masked; j < count; ++j) bits[j] = ~uint64_t{0};
    if (p.mask) and_mask(p, q, key);
    for (int64_t j = 0; j < hidden; ++j)
      bits[j] &= j < begin ? 0 : ~uint64_t{0} >> static_cast<unsigned>(63 - (j - begin));
    if (p.ends())
      for (int64_t j = larger(masked, diagonal + 1); j < count; ++j)
        bits[j] &= j - diagonal < 64 ? ~uint64_t{0} << static_cast<unsigned>(j - diagonal) : 0;
  }
  /// Rows [0, shown_to(v)) hide no key from vector v.
  int64_t shown_to(int v) const {
    return hides_any ? 0 : smaller(end[v], larger(0, v * kLanes<Real> + diagonal + 1));
  }
  /// Keys [0, seen_by(i)) of the tile hold all that query i sees.
  int64_t seen_by(int64_t i) const { return smaller(count, larger(0, i + diagonal + 1)); }
  /// No query before this one sees key j of the tile.
  int64_t first_query(int64_t j) const { return larger(0, j - diagonal); }

 private:
  void and_mask(const AttentionEntropyParams& p, const QueryTile<Real>& q, int64_t key) {
    const int64_t step = p.mask.strides.column;
    const auto rows = rows_at<const bool>(p.mask, q.batch, q.head, q.first).from(0, key * step);
    if (rows.stride == 0) {
      for (int64_t j = 0; j < count; ++j) bits[j] = rows.data[j * step] ? ~uint64_t{0} : 0;
      return;
    }
    for (int64_t j = 0; j < count; ++j) bits[j] = 0;
    for (int64_t i = 0; i < q.count; ++i) {
      const bool* row = rows.row(i);
      const auto bit = static_cast<unsigned>(i);
      for (int64_t j = 0; j < count; ++j) bits[j] |= uint64_t{row[j * step]} << bit;
    }
  }
};

/// Calls body(Constant<vectors>, first_vector, begin, end) for runs of key rows [begin, end) that
/// need the same vectors, first_vector and the `vectors` up to the tile's last.
template <class Real, class Body>
AERO_INLINE void for_key_runs(const QueryTile<Real>& q, const Visibility<Real>& visible,
                              Body&& body) {
  int64_t begin = 0;
  for (int v = 0; v < q.vectors; ++v) {
    const int64_t end = visible.end[v];
    if (end > begin)
      with_columns(q.vectors - v, [&](auto columns) { body(columns, v, begin, end); });
    begin = larger(begin, end);
  }
}

/// scores[j][i] = product_scale_i q_i . k_j, or kMaskedScore; raises maximum[i] to the largest of
/// them. Forward and backward both come here, so that both see the same bits.
/// `width` is D in operands.
template <class Operands, class Real, class Operand>
void compute_scores(const QueryTile<Real>& q, const Visibility<Real>& visible,
                    const Operand* q_transposed, Matrix<const Operand> keys, int64_t width,
                    Real* scores, Real* maxima, Prefetch& prefetch) {
  constexpr int lanes = kLanes<Real>, tile = kQueryTile<Real>;
  for_key_runs(q, visible, [&](auto columns, int first, int64_t begin, int64_t end) {
    constexpr int C = decltype(columns)::value;
    const int64_t lane = first * lanes;
    for_row_groups<C, Operands::kGroup>(begin, end, [&](auto rows, int64_t row) {
      constexpr int R = decltype(rows)::value;
      prefetch.step(R);
      typename Operands::template Product<R, C> product;
      multiply_rows(product, keys.from(row), {q_transposed + lane, tile}, width);
      const bool hidden = row >= visible.masked;
#pragma GCC unroll 4
      for (int v = 0; v < C; ++v) {
        const Vec<Real> scale = load(q.product_scale + lane + v * lanes);
        Vec<Real> top = load(maxima + lane + v * lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          Vec<Real> score = product.at[r][v] * scale;
          if (hidden) {
            using Word = typename Simd<Real>::Word;
            const auto first_bit = static_cast<unsigned>(lane + v * lanes);
            const auto word = static_cast<Word>(visible.bits[row + r] >> first_bit);
            const auto bit = (typename Simd<Real>::Int{} + Word{1}) << lane_index<Real>();
            score = (bit & word) != 0 ? score : splat(kMaskedScore<Real>);
          }
          top = maximum(top, score);
          store(scores + (row + r) * tile + lane + v * lanes, score);
        }
        store(maxima + lane + v * lanes, top);
      }
    });
  });
}

/// Zeros in the rows [begin, end) of weights for the vectors of queries beside those from `first`
/// to the last that a sum over whole units takes in.
template <class Operands, class Real>
void clear_unit_of_rows(const QueryTile<Real>& q, int first, int64_t begin, int64_t end,
                        typename Operands::Operand* weights) {
  constexpr int lanes = kLanes<Real>, vectors = Operands::kUnit / lanes;
  if constexpr (vectors > 1)
    for (int v = first / vectors * vectors; v < round_up(q.vectors, vectors); ++v)
      for (int64_t j = begin; (v < first || v >= q.vectors) && j < end; ++j)
        Operands::store_row(weights, j * kQueryTile<Real> + v * lanes, Vec<Real>{});
}

}  // namespace
}  // namespace aero::kernels::cpu
