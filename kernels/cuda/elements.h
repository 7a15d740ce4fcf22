// Elements of a tensor, sixteen bytes at a time.
#pragma once

#include <cstdint>

#include "kernels/cuda/lane.h"

namespace aero::kernels::cuda {

/// Calls visit(Element{}) with how the elements of a call are multiplied: the same choice for the
/// kernels and for their emulation.
template <class Params, class Visit>
void with_element(const Params& params, Visit visit) {
  if (params.data_type == DataType::kBFloat16) return visit(BFloat16{});
  if (params.data_type == DataType::kFloat16) return visit(Float16{});
  if constexpr (requires { params.allow_tf32; }) {
    if (params.allow_tf32) return visit(TensorFloat32{});
  }
  visit(Float32{});
}

struct alignas(16) Chunk {
  uint32_t words[4];
};

/// Elements of a chunk.
template <class Element>
inline constexpr int kChunkElements = 16 / Element::kBytes;

/// Element n of words, or of memory.
template <class Element, class Lane>
AERO_DEVICE float element_of(const uint32_t (&words)[4], int n) {
  if constexpr (Element::kBytes == 4)
    return __builtin_bit_cast(float, words[n]);
  else
    return Lane::unpack(Element{}, static_cast<uint16_t>(words[n / 2] >> (n % 2 * 16)));
}
template <class Element, class Lane>
AERO_DEVICE float element_of(const char* memory, int n) {
  if constexpr (Element::kBytes == 4)
    return reinterpret_cast<const float*>(memory)[n];
  else
    return Lane::unpack(Element{}, reinterpret_cast<const uint16_t*>(memory)[n]);
}

/// The bits of a value as an element, rounded to nearest.
template <class Element, class Lane>
AERO_DEVICE uint32_t bits_of(float value) {
  if constexpr (Element::kBytes == 4)
    return __builtin_bit_cast(uint32_t, value);
  else
    return Lane::pack(Element{}, value, 0.0f) & 0xffffu;
}

/// Puts the bits of an element in the place of element n.
template <class Element>
AERO_DEVICE void set_element(uint32_t (&words)[4], int n, uint32_t bits) {
  if constexpr (Element::kBytes == 4)
    words[n] = bits;
  else
    words[n / 2] = (words[n / 2] & (n % 2 ? 0xffffu : 0xffff0000u)) | bits << (n % 2 * 16);
}

/// Values as the elements of a chunk, rounded to nearest.
template <class Element, class Lane>
AERO_DEVICE void pack_chunk(uint32_t (&words)[4], const float (&values)[kChunkElements<Element>]) {
  AERO_UNROLL
  for (int n = 0; n < 4; ++n)
    if constexpr (Element::kBytes == 4)
      words[n] = __builtin_bit_cast(uint32_t, values[n]);
    else
      words[n] = Lane::pack(Element{}, values[2 * n], values[2 * n + 1]);
}

AERO_DEVICE bool is_aligned(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % 16 == 0;
}

/// Elements [first, first + kChunkElements) of a row of `count`, those beyond it having `filler` as
/// bits. One access where the row is aligned and has the whole chunk.
template <class Element>
AERO_DEVICE void load_chunk(uint32_t (&words)[4], const char* row, int first, int count,
                            uint32_t filler) {
  const char* memory = row + static_cast<int64_t>(first) * Element::kBytes;
  if (is_aligned(row) && first + kChunkElements<Element> <= count) {
    const Chunk chunk = *reinterpret_cast<const Chunk*>(memory);
    AERO_UNROLL
    for (int n = 0; n < 4; ++n) words[n] = chunk.words[n];
    return;
  }
  AERO_UNROLL
  for (int n = 0; n < kChunkElements<Element>; ++n) {
    uint32_t bits = filler;
    if (first + n < count) {
      if constexpr (Element::kBytes == 4)
        bits = reinterpret_cast<const uint32_t*>(memory)[n];
      else
        bits = reinterpret_cast<const uint16_t*>(memory)[n];
    }
    set_element<Element>(words, n, bits);
  }
}

/// Writes the elements of a chunk that a row of `count` has.
template <class Element>
AERO_DEVICE void store_chunk(char* row, int first, int count, const uint32_t (&words)[4]) {
  char* memory = row + static_cast<int64_t>(first) * Element::kBytes;
  if (is_aligned(row) && first + kChunkElements<Element> <= count) {
    *reinterpret_cast<Chunk*>(memory) = {words[0], words[1], words[2], words[3]};
    return;
  }
  AERO_UNROLL
  for (int n = 0; n < kChunkElements<Element>; ++n) {
    if (first + n >= count) continue;
    if constexpr (Element::kBytes == 4)
      reinterpret_cast<uint32_t*>(memory)[n] = words[n];
    else
      reinterpret_cast<uint16_t*>(memory)[n] = static_cast<uint16_t>(words[n / 2] >> (n % 2 * 16));
  }
}

}  // namespace aero::kernels::cuda
