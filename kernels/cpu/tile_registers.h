// Sums of sixteen rows in the tile registers of AMX, which multiply pairs of bfloat16.
//
// One instruction adds A B to sixteen rows of sixteen sums: A holds sixteen rows of sixteen pairs,
// B sixteen rows of pairs for sixteen columns, both as the vector tiles of micro_kernel.h read
// them. Sums reach vectors through memory. Written in assembly: GCC 12's intrinsics do not tell the
// compiler which memory a tile is loaded from, nor that a configuration is 64 bytes long.
#pragma once

#include "kernels/cpu/micro_kernel.h"

#if defined(__AMX_BF16__)

namespace aero::kernels::cpu {
namespace {

constexpr int kTileRows = 16;
constexpr int kTilePairs = 16;

/// Gives the tile registers of this thread their shapes while it lives: sums in 0 to 3, A in 4, B
/// in 5; A and B of the last pairs of a head row, where those are fewer than sixteen, in 6 and 7.
class TileRegisters {
 public:
  explicit TileRegisters(int64_t head_dim) {
    Shapes shapes;
    const int64_t last_pairs = head_dim / 2 % kTilePairs;
    for (int n = 0; n < 6; ++n) shapes.bytes[n] = 64, shapes.rows[n] = kTileRows;
    if (last_pairs > 0) {
      shapes.bytes[6] = static_cast<uint16_t>(last_pairs * 4), shapes.rows[6] = kTileRows;
      shapes.bytes[7] = 64, shapes.rows[7] = static_cast<uint8_t>(last_pairs);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~TileRegisters() { __asm__ volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

 private:
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};  ///< of a row
    uint8_t rows[16] = {};
  };
};

/// The counterpart of Tile<float, 16, C>. One at a time.
template <int C>
struct TileOfRegisters {
  static constexpr int kDepth = kTilePairs;
  Vec<float> at[kTileRows][C];  ///< after finish()

  AERO_INLINE void clear() { clear_from<0>(); }
  template <int First = 0>
  AERO_INLINE void add_product(const Pair* a, int64_t row_stride, const Pair* b, int64_t b_stride) {
    load<4>(a, row_stride);
    add_columns<First, 4, 5>(b, b_stride);
  }
  /// The last pairs of head rows.
  AERO_INLINE void add_last_product(const Pair* a, int64_t row_stride, const Pair* b,
                                    int64_t b_stride) {
    load<6>(a, row_stride);
    add_columns<0, 6, 7>(b, b_stride);
  }
  AERO_INLINE void finish() { store_from<0>(); }

 private:
  template <int Column>
  AERO_INLINE void clear_from() {
    if constexpr (Column < C) {
      __asm__ volatile("tilezero %%tmm%c0" : : "i"(Column));
      clear_from<Column + 1>();
    }
  }
  template <int Column, int A, int B>
  AERO_INLINE void add_columns(const Pair* b, int64_t b_stride) {
    if constexpr (Column < C) {
      load<B>(b + Column * kLanes<float>, b_stride);
      __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Column), "i"(A), "i"(B));
      add_columns<Column + 1, A, B>(b, b_stride);
    }
  }
  template <int Column>
  AERO_INLINE void store_from() {
    if constexpr (Column < C) {
      constexpr int64_t row_bytes = sizeof(at[0]);
      __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                       :
                       : "r"(&at[0][Column]), "r"(row_bytes), "i"(Column)
                       : "memory");
      store_from<Column + 1>();
    }
  }
  template <int Register>
  static AERO_INLINE void load(const Pair* from, int64_t stride) {
    constexpr auto size = static_cast<int64_t>(sizeof(Pair));
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(from), "r"(stride * size), "i"(Register)
                     : "memory");
  }
};

}  // namespace
}  // namespace aero::kernels::cpu

#endif
