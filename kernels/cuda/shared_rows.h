// Rows of a tile in shared memory, and how they come from and go to a tensor.
#pragma once

#include <cstdint>

#include "kernels/cuda/elements.h"

namespace aero::kernels::cuda {

/// Rows of kRowBytes in chunks of 16 bytes. A matrix instruction reads the same chunk of 8 rows
/// that follow each other, and those must lie in different banks: 8 chunks span all 32. So a row's
/// chunks are exchanged by its number, rows of 4 (mod 8) chunks by half of it, for they alternate
/// between the halves of the banks already.
template <int kRowBytes>
struct SharedRows {
  static constexpr int kChunks = kRowBytes / 16;
  static_assert(kRowBytes % 64 == 0, "a row is a multiple of 4 chunks");

  int base;  ///< multiple of 128

  AERO_DEVICE int chunk(int row, int column) const {
    const int turned = kChunks % 8 == 0 ? column ^ (row & 7) : column ^ (row >> 1 & 3);
    return base + row * kRowBytes + turned * 16;
  }
  /// chunk(row + rows, column + columns) of at = chunk(row, column), where `rows` is a multiple of
  /// 8, `columns` even and `column` 0 or 1. Only what the exchange reaches is not an immediate
  /// offset.
  AERO_DEVICE static int moved(int at, int rows, int columns) {
    constexpr int kExchanged = kChunks % 8 == 0 ? 8 : 4;
    return (at ^ (columns & (kExchanged - 1)) * 16) + (columns & ~(kExchanged - 1)) * 16 +
           rows * kRowBytes;
  }
};

/// Rows of one head of a tensor, or of a part of its columns. Byte: char or const char.
template <class Byte>
struct TensorRows {
  Byte* data;                   ///< row 0
  int64_t stride;               ///< bytes from row to row
  int row_bytes;                ///< of a row, without the gap between rows
  int end;                      ///< rows [0, end) exist
  const float* sums = nullptr;  ///< of weights; rows whose sum is 0 are taken for zeros

  /// Whether every chunk of every row is one aligned access.
  AERO_DEVICE bool is_aligned() const {
    return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride)) % 16 == 0;
  }
  AERO_DEVICE Byte* chunk(int row, int column) const { return data + row * stride + column * 16; }
  AERO_DEVICE bool has(int row) const { return row < end && !(sums && sums[row] == 0); }
  /// Whether all chunks of rows [first, first + count) are there and aligned, kBytes a row.
  template <int kBytes>
  AERO_DEVICE bool are_whole(int first, int count) const {
    return row_bytes == kBytes && !sums && first + count <= end && is_aligned();
  }
  /// Bytes of a chunk of any row.
  AERO_DEVICE int bytes_at(int column) const {
    return smaller(at_least_zero(row_bytes - column * 16), 16);
  }
};

/// The same rows, beginning at column `first`.
template <class Element, class Byte>
AERO_DEVICE TensorRows<Byte> columns_from(const TensorRows<Byte>& rows, int first) {
  const int left = rows.row_bytes - first * Element::kBytes;
  return {rows.data + first * Element::kBytes, rows.stride, at_least_zero(left), rows.end};
}

template <class Byte, class T>
AERO_DEVICE TensorRows<Byte> rows_of(const TensorView<T>& tensor, int64_t batch, int64_t head,
                                     int64_t rows, int64_t columns, int element_bytes) {
  const Strides& s = tensor.strides;
  Byte* data = static_cast<Byte*>(tensor.data) + (batch * s.batch + head * s.head) * element_bytes;
  return {data, s.row * element_bytes, static_cast<int>(columns) * element_bytes,
          static_cast<int>(rows)};
}

/// Calls use(row, column) for the chunks of kRows rows that are this lane's, all lanes alike.
template <int kRows, int kChunks, int kThreads, class Lane, class Use>
AERO_DEVICE void for_own_chunks(const Lane& lane, Use use) {
  static_assert(kRows * kChunks % kThreads == 0, "lanes share the chunks evenly");
  AERO_ROLLED
  for (int n = 0; n < kRows * kChunks / kThreads; ++n) {
    const int index = n * kThreads + lane.thread;
    use(index / kChunks, index % kChunks);
  }
}

/// The row of this lane's first chunk.
template <int kChunks, class Lane>
AERO_DEVICE int row_of(const Lane& lane) {
  return static_cast<int>(static_cast<uint32_t>(lane.thread) / kChunks);
}

/// fetch_rows of whole rows: an address for each column, which only grows.
template <int kRows, int kThreads, int kRowBytes, class Lane>
AERO_DEVICE void fetch_whole_rows(Lane& lane, SharedRows<kRowBytes> to,
                                  const TensorRows<const char>& from, int first) {
  constexpr int kChunks = kRowBytes / 16, kStep = kThreads / kChunks;
  const int row = row_of<kChunks>(lane), column = lane.thread - row * kChunks;
  const char* source = from.chunk(first + row, column);
  const int at = to.chunk(row, column);
  AERO_UNROLL
  for (int n = 0; n < kRows / kStep; ++n, source += kStep * from.stride)
    lane.copy_async(kStep % 8 == 0 ? at + n * kStep * kRowBytes : to.chunk(row + n * kStep, column),
                    source, 16);
}

/// fetch_rows where every chunk is one aligned access. If a turn of all lanes is whole rows, a lane
/// keeps its column, and its address only grows.
template <int kRows, int kThreads, int kRowBytes, class Lane>
AERO_DEVICE void fetch_aligned_rows(Lane& lane, SharedRows<kRowBytes> to,
                                    const TensorRows<const char>& from, int first) {
  constexpr int kChunks = kRowBytes / 16;
  if constexpr (kThreads % kChunks == 0) {
    constexpr int kStep = kThreads / kChunks;
    const int row = row_of<kChunks>(lane), column = lane.thread - row * kChunks;
    const int bytes = from.bytes_at(column);
    const char* source = from.chunk(first + row, column);
    AERO_UNROLL
    for (int n = 0; n < kRows / kStep; ++n, source += kStep * from.stride) {
      const bool exists = bytes != 0 && from.has(first + row + n * kStep);
      lane.copy_async(to.chunk(row + n * kStep, column), exists ? source : from.data,
                      exists ? bytes : 0);
    }
  } else {
    for_own_chunks<kRows, kChunks, kThreads>(lane, [&](int row, int column) {
      const int bytes = from.has(first + row) ? from.bytes_at(column) : 0;
      lane.copy_async(to.chunk(row, column), bytes ? from.chunk(first + row, column) : from.data,
                      bytes);
    });
  }
}

/// Begins to copy rows [first, first + kRows) of a tensor; rows it does not have become 0. To be
/// committed and waited for, also where the rows are not aligned and go through registers.
template <class Element, int kRows, int kThreads, int kRowBytes, class Lane>
AERO_DEVICE void fetch_rows(Lane& lane, SharedRows<kRowBytes> to,
                            const TensorRows<const char>& from, int first) {
  constexpr int kElements = 16 / Element::kBytes;
  if constexpr (kThreads % (kRowBytes / 16) == 0)
    if (from.template are_whole<kRowBytes>(first, kRows))
      return fetch_whole_rows<kRows, kThreads>(lane, to, from, first);
  if (from.is_aligned()) return fetch_aligned_rows<kRows, kThreads>(lane, to, from, first);
  for_own_chunks<kRows, kRowBytes / 16, kThreads>(lane, [&](int row, int column) {
    const int count = from.has(first + row) ? from.bytes_at(column) / Element::kBytes : 0;
    const char* source = from.chunk(first + row, column);
    uint32_t words[4] = {};
    AERO_UNROLL
    for (int n = 0; n < kElements; ++n) {
      if (n >= count) continue;
      if constexpr (Element::kBytes == 4)
        words[n] = reinterpret_cast<const uint32_t*>(source)[n];
      else
        words[n / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(source)[n])
                        << (n % 2 * 16);
    }
    lane.store_words(to.chunk(row, column), words);
  });
}

/// Copies rows [first, first + kRows) that the lanes of the block stored, and that a barrier made
/// visible, to a tensor.
template <class Element, int kRows, int kThreads, int kRowBytes, class Lane>
AERO_DEVICE void copy_out_rows(Lane& lane, const TensorRows<char>& to, SharedRows<kRowBytes> from,
                               int first) {
  constexpr int kElements = 16 / Element::kBytes;
  const bool aligned = to.is_aligned();
  for_own_chunks<kRows, kRowBytes / 16, kThreads>(lane, [&](int row, int column) {
    Chunk chunk;
    lane.load_words(chunk.words, from.chunk(row, column));
    const int bytes = to.has(first + row) ? to.bytes_at(column) : 0;
    char* target = to.chunk(first + row, column);
    if (aligned && bytes == 16) {
      *reinterpret_cast<Chunk*>(target) = chunk;
      return;
    }
    AERO_UNROLL
    for (int n = 0; n < kElements; ++n) {
      if (n * Element::kBytes >= bytes) continue;
      if constexpr (Element::kBytes == 4)
        reinterpret_cast<uint32_t*>(target)[n] = chunk.words[n];
      else
        reinterpret_cast<uint16_t*>(target)[n] =
            static_cast<uint16_t>(chunk.words[n / 2] >> (n % 2 * 16));
    }
  });
}

}  // namespace aero::kernels::cuda
