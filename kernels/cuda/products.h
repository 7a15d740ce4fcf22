// Products of tiles: fragments of 16 x 8 sums, their operands from shared memory or from other
// sums.
//
// A step is 32 bytes of a row: 16 elements of 16 bits or 8 of 32. A block is 8 columns of sums: a
// lane holds (group, 2 member + {0, 1}) in sums 0 and 1, and row group + 8 in sums 2 and 3.
#pragma once

#include <type_traits>

#include "kernels/cuda/shared_rows.h"

namespace aero::kernels::cuda {

/// How elements of a type are multiplied.
template <class Element>
struct Matrix {
  static constexpr int kStep = 16;                ///< elements
  static constexpr int kBlocksPerStep = 2;        ///< blocks of sums whose columns are a step
  static constexpr bool kSumsTilesApart = false;  ///< see add_tile_of_weighted_rows

  template <class Lane>
  AERO_DEVICE static void multiply(Lane& lane, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
    lane.multiply(Element{}, sum, a, b0, b1);
  }

  /// Sums, rounded, as left operand: the layouts are the same.
  template <class Lane>
  AERO_DEVICE static void left_of_sums(const Lane&, uint32_t (&a)[4], const float (*sums)[4]) {
    a[0] = Lane::pack(Element{}, sums[0][0], sums[0][1]);
    a[1] = Lane::pack(Element{}, sums[0][2], sums[0][3]);
    a[2] = Lane::pack(Element{}, sums[1][0], sums[1][1]);
    a[3] = Lane::pack(Element{}, sums[1][2], sums[1][3]);
  }

  /// Right operands of two blocks of columns, from rows that are the step: rows [row, row + 16),
  /// columns [8 block, 8 block + 16).
  template <int kRowBytes, class Lane>
  AERO_DEVICE static void right_of_columns(Lane& lane, uint32_t (&b)[4], SharedRows<kRowBytes> rows,
                                           int row, int block) {
    const int in_warp = in_warp_of(lane);
    const int at = rows.chunk(in_warp & 15, in_warp >> 4);
    lane.load_matrices_transposed(b, rows.moved(at, row, block));
  }

  /// Stores two neighbouring sums of a block, rounded.
  template <int kRowBytes, class Lane>
  AERO_DEVICE static void store_sums(Lane& lane, SharedRows<kRowBytes> rows, int row, int block,
                                     float low, float high) {
    const uint32_t word[1] = {Lane::pack(Element{}, low, high)};
    lane.store_words(rows.chunk(row, block) + member_of(lane) * 4, word);
  }
};

/// The common parts of products of elements of 32 bits.
struct WordMatrix {
  static constexpr int kStep = 8;
  static constexpr int kBlocksPerStep = 1;
  static constexpr bool kSumsTilesApart = false;

  /// Columns m and m + 4 of the operand are columns 2 m and 2 m + 1 of the sums: what is summed
  /// over may come in any order, the same on both sides, and so nothing changes lanes.
  template <class Lane>
  AERO_DEVICE static void left_of_sums(const Lane&, uint32_t (&a)[4], const float (*sums)[4]) {
    a[0] = __builtin_bit_cast(uint32_t, sums[0][0]);
    a[1] = __builtin_bit_cast(uint32_t, sums[0][2]);
    a[2] = __builtin_bit_cast(uint32_t, sums[0][1]);
    a[3] = __builtin_bit_cast(uint32_t, sums[0][3]);
  }
  /// Rows m and m + 4 of the operand are rows 2 m and 2 m + 1, which lie in different banks for
  /// the four m.
  template <int kRowBytes, class Lane>
  AERO_DEVICE static void right_of_columns(Lane& lane, uint32_t (&b)[4], SharedRows<kRowBytes> rows,
                                           int row, int block) {
    AERO_UNROLL
    for (int n = 0; n < 4; ++n) {
      const int column = (block + n / 2) * 8 + group_of(lane);
      uint32_t word[1];
      lane.load_words(word,
                      rows.chunk(row + 2 * member_of(lane) + n % 2, column / 4) + column % 4 * 4);
      b[n] = word[0];
    }
  }
  template <int kRowBytes, class Lane>
  AERO_DEVICE static void store_sums(Lane& lane, SharedRows<kRowBytes> rows, int row, int block,
                                     float low, float high) {
    const uint32_t words[2] = {__builtin_bit_cast(uint32_t, low),
                               __builtin_bit_cast(uint32_t, high)};
    const int member = member_of(lane);
    lane.store_words(rows.chunk(row, block * 2 + member / 2) + member % 2 * 8, words);
  }
};

/// float32 in three products of TF32 (10 bits each): x = high + low, and low low, up to 2^-22 of
/// the product, is left out.
template <>
struct Matrix<Float32> : WordMatrix {
  static constexpr bool kSumsTilesApart = true;
  struct Split {
    uint32_t high, low;
  };
  /// The nearest number of 10 bits behind the point, ties away, and what is left: up to 12 bits, of
  /// which products see the first 11. That low is never rounded is safe: they ignore the 13 bits
  /// beyond (first_contact.cu asks the device), and so lose at most the last place of x, 2^-23 of
  /// it. A high NaN may become a number, but then low is NaN.
  AERO_DEVICE static Split split(uint32_t bits) {
    const uint32_t high = (bits + 0x1000u) & ~0x1fffu;
    const float low = __builtin_bit_cast(float, bits) - __builtin_bit_cast(float, high);
    return {high, __builtin_bit_cast(uint32_t, low)};
  }

  template <class Lane>
  AERO_DEVICE static void multiply(Lane& lane, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
    uint32_t high[4], low[4];
    AERO_UNROLL
    for (int n = 0; n < 4; ++n) {
      const Split part = split(a[n]);
      high[n] = part.high, low[n] = part.low;
    }
    const Split first = split(b0), second = split(b1);
    lane.multiply(TensorFloat32{}, sum, low, first.high, second.high);
    lane.multiply(TensorFloat32{}, sum, high, first.low, second.low);
    lane.multiply(TensorFloat32{}, sum, high, first.high, second.high);
  }
};

/// One product of TF32. Its operands are rounded before, for it would cut off what is beyond: rows
/// where they lie (round_rows), sums here.
template <>
struct Matrix<TensorFloat32> : WordMatrix {
  template <class Lane>
  AERO_DEVICE static void multiply(Lane& lane, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
    lane.multiply(TensorFloat32{}, sum, a, b0, b1);
  }

  template <class Lane>
  AERO_DEVICE static void left_of_sums(const Lane& lane, uint32_t (&a)[4], const float (*sums)[4]) {
    WordMatrix::left_of_sums(lane, a, sums);
    AERO_UNROLL
    for (int n = 0; n < 4; ++n) a[n] = Lane::round_to_tf32(__builtin_bit_cast(float, a[n]));
  }
};

/// Rounds rows that have arrived to the precision of products, once for all warps. All lanes of the
/// block come here together, and find the rows done when they leave. Nothing for other elements.
template <class Element, int kRows, int kThreads, int kRowBytes, class Lane>
AERO_DEVICE void round_rows(Lane& lane, SharedRows<kRowBytes> rows) {
  if constexpr (!std::is_same_v<Element, TensorFloat32>) return;
  constexpr int kChunks = kRowBytes / 16, kOwn = kRows * kChunks / kThreads;
  constexpr int kAtOnce = kOwn % 4 == 0 ? 4 : kOwn % 3 == 0 ? 3 : 1;  // loads on their way
  static_assert(kRows * kChunks % kThreads == 0, "lanes share the chunks evenly");
  AERO_ROLLED
  for (int first = 0; first < kOwn; first += kAtOnce) {
    uint32_t words[kAtOnce][4];
    int places[kAtOnce];
    AERO_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      const int index = (first + n) * kThreads + lane.thread;
      places[n] = rows.chunk(index / kChunks, index % kChunks);
      lane.load_words(words[n], places[n]);
    }
    AERO_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      AERO_UNROLL
      for (uint32_t& word : words[n]) word = Lane::round_to_tf32(__builtin_bit_cast(float, word));
      lane.store_words(places[n], words[n]);
    }
  }
  lane.barrier();
}

/// Left operand: 16 rows from `row` on, step `step`.
template <int kRowBytes, class Lane>
AERO_DEVICE void load_left(Lane& lane, uint32_t (&a)[4], SharedRows<kRowBytes> rows, int row,
                           int step) {
  const int in_warp = in_warp_of(lane);
  const int at = rows.chunk(in_warp & 15, in_warp >> 4);
  lane.load_matrices(a, rows.moved(at, row, 2 * step));
}

/// Left operand: 16 columns from `8 block` on, of which rows [row, row + 16) are the step.
template <int kRowBytes, class Lane>
AERO_DEVICE void load_left_of_columns(Lane& lane, uint32_t (&a)[4], SharedRows<kRowBytes> rows,
                                      int row, int block) {
  const int in_warp = in_warp_of(lane);
  const int at = rows.chunk((in_warp >> 4) * 8 + (in_warp & 7), (in_warp >> 3 & 1) + block);
  lane.load_matrices_transposed(a, rows.moved(at, row, 0));
}

/// Right operands of two blocks, whose columns are the 16 rows from `row` on.
template <int kRowBytes, class Lane>
AERO_DEVICE void load_right(Lane& lane, uint32_t (&b)[4], SharedRows<kRowBytes> rows, int row,
                            int step) {
  const int in_warp = in_warp_of(lane);
  const int at = rows.chunk((in_warp >> 4) * 8 + (in_warp & 7), in_warp >> 3 & 1);
  lane.load_matrices(b, rows.moved(at, row, 2 * step));
}

/// Rows that stay while others stream by: 16 kRowTiles of them per warp, in registers or in shared
/// memory.
template <int kRowTiles, int kRowBytes, bool kInRegisters>
class StayingRows {
 public:
  static constexpr int kSteps = kRowBytes / 32;

  /// `first` is the warp's first row.
  template <class Lane>
  AERO_DEVICE StayingRows(Lane& lane, SharedRows<kRowBytes> rows, int first)
      : rows_(rows), first_(first) {
    if constexpr (kInRegisters) AERO_UNROLL
    for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
    for (int step = 0; step < kSteps; ++step)
      load_left(lane, fragments_[r][step], rows, first + 16 * r, step);
  }

  template <class Lane>
  AERO_DEVICE void operand(Lane& lane, uint32_t (&a)[4], int tile, int step) const {
    if constexpr (kInRegisters) {
      AERO_UNROLL
      for (int n = 0; n < 4; ++n) a[n] = fragments_[tile][step][n];
    } else {
      load_left(lane, a, rows_, first_ + 16 * tile, step);
    }
  }

 private:
  SharedRows<kRowBytes> rows_;
  int first_;
  uint32_t fragments_[kInRegisters ? kRowTiles : 1][kInRegisters ? kSteps : 1][4];
};

template <int kRowTiles, int kBlocks>
AERO_DEVICE void clear(float (&sums)[kRowTiles][kBlocks][4]) {
  AERO_UNROLL
  for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
  for (int block = 0; block < kBlocks; ++block) AERO_UNROLL
  for (int n = 0; n < 4; ++n) sums[r][block][n] = 0;
}

/// sums[i][j] = left_i . rows_j
template <class Element, int kRowTiles, int kBlocks, int kRowBytes, bool kInRegisters, class Lane>
AERO_DEVICE void multiply_rows(Lane& lane, float (&sums)[kRowTiles][kBlocks][4],
                               const StayingRows<kRowTiles, kRowBytes, kInRegisters>& left,
                               SharedRows<kRowBytes> rows) {
  clear(sums);
  AERO_UNROLL
  for (int step = 0; step < kRowBytes / 32; ++step) {
    uint32_t a[kRowTiles][4];
    AERO_UNROLL
    for (int r = 0; r < kRowTiles; ++r) left.operand(lane, a[r], r, step);
    AERO_UNROLL
    for (int block = 0; block < kBlocks; block += 2) {
      uint32_t b[4];
      load_right(lane, b, rows, block * 8, step);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        Matrix<Element>::multiply(lane, sums[r][block], a[r], b[0], b[1]);
        Matrix<Element>::multiply(lane, sums[r][block + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/// add_weighted_rows for float32, where a tile is summed from zero and then added: the tensor cores
/// round toward zero three times a step, and a running sum that went through them would lose up to
/// as many units in its last place for every eight rows (1.6e-4 after 16384; README.md). Columns
/// come first, so that the sums of two blocks are enough: to add after every step spills.
template <class Element, int kRowTiles, int kColumnBlocks, int kBlocks, int kRowBytes, class Lane>
AERO_DEVICE void add_tile_of_weighted_rows(Lane& lane, float (&sums)[kRowTiles][kColumnBlocks][4],
                                           const float (&weights)[kRowTiles][kBlocks][4],
                                           SharedRows<kRowBytes> rows, int first_block) {
  using M = Matrix<Element>;
  AERO_UNROLL
  for (int first = 0; first < kColumnBlocks; first += 2) {
    float tile[kRowTiles][2][4];
    clear(tile);
    AERO_UNROLL
    for (int step = 0; step < kBlocks / M::kBlocksPerStep; ++step) {
      uint32_t b[4];
      M::right_of_columns(lane, b, rows, step * M::kStep, first_block + first);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        uint32_t a[4];
        M::left_of_sums(lane, a, &weights[r][step * M::kBlocksPerStep]);
        M::multiply(lane, tile[r][0], a, b[0], b[1]);
        M::multiply(lane, tile[r][1], a, b[2], b[3]);
      }
    }
    AERO_UNROLL
    for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
    for (int block = 0; block < 2; ++block) AERO_UNROLL
    for (int n = 0; n < 4; ++n) sums[r][first + block][n] += tile[r][block][n];
  }
}

/// sums[i][d] += sum_j weights[i][j] rows[j][d], columns d from 8 first_block on.
template <class Element, int kRowTiles, int kColumnBlocks, int kBlocks, int kRowBytes, class Lane>
AERO_DEVICE void add_weighted_rows(Lane& lane, float (&sums)[kRowTiles][kColumnBlocks][4],
                                   const float (&weights)[kRowTiles][kBlocks][4],
                                   SharedRows<kRowBytes> rows, int first_block) {
  using M = Matrix<Element>;
  if constexpr (M::kSumsTilesApart)
    return add_tile_of_weighted_rows<Element>(lane, sums, weights, rows, first_block);
  if constexpr (kRowTiles == 1) lane.thread = lane.fresh(lane.thread);
  AERO_UNROLL
  for (int step = 0; step < kBlocks / M::kBlocksPerStep; ++step) {
    uint32_t a[kRowTiles][4];
    AERO_UNROLL
    for (int r = 0; r < kRowTiles; ++r)
      M::left_of_sums(lane, a[r], &weights[r][step * M::kBlocksPerStep]);
    AERO_UNROLL
    for (int block = 0; block < kColumnBlocks; block += 2) {
      uint32_t b[4];
      M::right_of_columns(lane, b, rows, step * M::kStep, first_block + block);
      AERO_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        M::multiply(lane, sums[r][block], a[r], b[0], b[1]);
        M::multiply(lane, sums[r][block + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/// Stores the warp's sums, whose rows begin at `first`.
template <class Element, int kRowTiles, int kColumnBlocks, int kRowBytes, class Lane>
AERO_DEVICE void store_sums(Lane& lane, SharedRows<kRowBytes> rows, int first,
                            const float (&sums)[kRowTiles][kColumnBlocks][4]) {
  AERO_UNROLL
  for (int r = 0; r < kRowTiles; ++r) AERO_UNROLL
  for (int block = 0; block < kColumnBlocks; ++block) AERO_UNROLL
  for (int half = 0; half < 2; ++half)
    Matrix<Element>::store_sums(lane, rows, first + 16 * r + 8 * half + group_of(lane), block,
                                sums[r][block][2 * half], sums[r][block][2 * half + 1]);
}

}  // namespace aero::kernels::cuda
