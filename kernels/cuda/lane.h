// The interface of a pass: a lane, one thread of a block, on a GPU (device_lane.h) or emulated
// (tests).
//
// A lane has these members. Shared memory is addressed in bytes from the start of the block's own.
// Those marked (warp) must be reached by all 32 lanes of a warp together.
//
//   int thread                                   0 .. threads - 1 in its block
//   void barrier()                               all lanes of the block; orders shared memory
//   void copy_async(to, from, bytes)             (warp) global to shared: 16 bytes, of which the
//                                                first `bytes` come from `from`, the others are 0
//   void commit_copies()                         the copies since the last commit are a group
//   void wait_copies<N>()                        until at most the N youngest groups are missing
//   void store_words(to, const uint32_t (&)[N])  (warp) N = 1, 2, 4, aligned to 4 N
//   void load_words(uint32_t (&)[N], from)       (warp) the same
//   void load_matrices(uint32_t (&)[4], row)     (warp) four 8 x 8 matrices of 16-bit elements;
//   lane
//                                                8 i + r gives the address of row r of matrix i and
//                                                gets elements (lane / 4, 2 (lane % 4) + {0, 1})
//   void load_matrices_transposed(...)           (warp) the same of the transposed matrices
//   float exchange(value, distance)              (warp) the value of lane ^ distance
//   bool any(bool)                               (warp) whether it is true in any lane
//   bool is_last_block(arrived, blocks)          (block) true in the one block of `blocks` that
//   gets
//                                                here last, which then sees what all of them wrote;
//                                                *arrived was 0 before the first
//   void multiply(Element, float (&c)[4], const uint32_t (&a)[4], b0, b1)
//                                                (warp) c += a b: 16 x 8 += (16 x k)(k x 8), where
//                                                a row of a is 32 bytes; fragments as in PTX's mma.
//                                                Half types and TensorFloat32
//   static uint32_t pack(Element, low, high)     two floats as 16-bit elements, round to nearest
//   static float unpack(Element, uint16_t)       and back
//   static uint32_t round_to_tf32(float)         19 bits that multiply(TensorFloat32) takes
//   static int fresh(int)                        the same number, unknown to the compiler: what
//                                                comes from it, as addresses from `thread`, is
//                                                computed again and not kept in registers
//   static float exp2(x), log(x)                 2^x within 2^-22 and exactly 1 at 0; natural log
//   static float tanh(x)                         within two units of the last place
#pragma once

#include <cstdint>

#include "kernels/layout.h"

#if defined(__CUDACC__)
#define AERO_DEVICE __device__ __forceinline__
#define AERO_UNROLL _Pragma("unroll")
#define AERO_ROLLED _Pragma("unroll 1")
#else
#define AERO_DEVICE inline
#define AERO_UNROLL
#define AERO_ROLLED
#endif

namespace aero::kernels::cuda {

struct BFloat16 {
  static constexpr int kBytes = 2;
  static constexpr DataType kDataType = DataType::kBFloat16;
};
struct Float16 {
  static constexpr int kBytes = 2;
  static constexpr DataType kDataType = DataType::kFloat16;
};
struct Float32 {
  static constexpr int kBytes = 4;
  static constexpr DataType kDataType = DataType::kFloat32;
};
/// float32 as everywhere else, but that products see 10 bits behind the point of their operands.
struct TensorFloat32 {
  static constexpr int kBytes = 4;
  static constexpr DataType kDataType = DataType::kFloat32;
};

inline constexpr int kWarp = 32;

/// A pass to name in a call.
template <class P>
struct Chosen {
  using Pass = P;
};

AERO_DEVICE int smaller(int a, int b) { return a < b ? a : b; }
/// x, or 0 where it is negative. Not a maximum: of one with a minimum inside ptxas before CUDA 13.4
/// makes one instruction for sm_90 and sm_100 whose comparison is wrong (README.md).
AERO_DEVICE int at_least_zero(int x) { return x & ~(x >> 31); }
/// a / b of numbers from 0 on, without a division where it is 0: that takes as long as 30 products.
AERO_DEVICE int quotient(int a, int b) { return a < b ? 0 : a / b; }
constexpr int largest(int a, int b) { return a > b ? a : b; }

/// Number of tiles of `size` that cover `count`.
constexpr int64_t tiles_of(int64_t count, int size) { return (count + size - 1) / size; }

/// The factor of a row's scores, `scale` being that of all rows. A temperature of
/// zero makes the row NaN: whether there is one is not known without waiting for the device.
AERO_DEVICE float row_scale(float scale, float temperature) {
  return temperature == 0 ? __builtin_nanf("") : scale / temperature;
}

/// Where a lane stands in fragments: accumulators and rows of `a` belong to rows group() and
/// group() + 8, columns 2 member() and 2 member() + 1. Lanes of a group follow each other.
template <class Lane>
AERO_DEVICE int group_of(const Lane& lane) {
  return (lane.thread & 31) >> 2;
}
/// By bits, here and below: the compiler does not know that `thread` is not negative.
template <class Lane>
AERO_DEVICE int member_of(const Lane& lane) {
  return lane.thread & 3;
}
template <class Lane>
AERO_DEVICE int warp_of(const Lane& lane) {
  return lane.thread >> 5;
}

template <class Lane>
AERO_DEVICE int in_warp_of(const Lane& lane) {
  return lane.thread & 31;
}

/// Over the four lanes that hold a row: the same value for all, in an order that does not depend on
/// the lane.
template <class Lane>
AERO_DEVICE float sum_over_group(Lane& lane, float value) {
  value += lane.exchange(value, 1);
  return value + lane.exchange(value, 2);
}
template <class Lane>
AERO_DEVICE float maximum_over_group(Lane& lane, float value) {
  value = __builtin_fmaxf(value, lane.exchange(value, 1));
  return __builtin_fmaxf(value, lane.exchange(value, 2));
}

/// Sums of eight values over the eight groups of a warp, in seven exchanges; a lane gets the sum of
/// the value that has its group's number.
template <class Lane>
AERO_DEVICE float sum_over_groups(Lane& lane, float (&values)[8]) {
  AERO_UNROLL
  for (int count = 4; count > 0; count /= 2) {
    const bool upper = (group_of(lane) & count) != 0;
    AERO_UNROLL
    for (int n = 0; n < count; ++n) {
      const float kept = upper ? values[n + count] : values[n];
      values[n] = kept + lane.exchange(upper ? values[n] : values[n + count], 4 * count);
    }
  }
  return values[0];
}

}  // namespace aero::kernels::cuda
