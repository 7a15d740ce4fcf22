// The lane (kernels/cuda/lane.h) of an emulated block.
//
// Products are exact and rounded toward zero once per instruction, as no GPU does better; 2^x is
// off by its documented 2^-22 in either direction.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/lane.h"
#include "tests/cpp/kernels/cuda/emulated_block.h"

namespace aero::kernels::cuda::testing {

/// Instructions of a whole warp, counted.
struct InstructionCounts {
  int64_t multiplications = 0, matrix_loads = 0;
};

class EmulatedLane {
 public:
  EmulatedLane(EmulatedBlock& block, int thread_in_block, InstructionCounts& counts)
      : thread(thread_in_block), block_(block), counts_(counts) {}

  int thread;

  void barrier() { block_.barrier(thread); }

  void copy_async(int to, const void* from, int bytes) {
    count_conflicts("copy_async", to, 4, block_.shared().conflicts.copies);
    block_.shared().copy_async(thread, to, from, bytes);
  }
  void commit_copies() { block_.shared().commit_copies(thread); }
  template <int kMissing>
  void wait_copies() {
    block_.shared().wait_copies(thread, kMissing);
  }

  template <int kCount>
  void store_words(int to, const uint32_t (&words)[kCount]) {
    count_conflicts("store_words", to, kCount, block_.shared().conflicts.stores);
    block_.shared().store(thread, to, words, kCount);
  }
  template <int kCount>
  void load_words(uint32_t (&words)[kCount], int from) {
    count_conflicts("load_words", from, kCount, block_.shared().conflicts.loads);
    block_.shared().load(thread, from, words, kCount);
  }

  void load_matrices(uint32_t (&result)[4], int row) { load_matrices("load", result, row, false); }
  void load_matrices_transposed(uint32_t (&result)[4], int row) {
    load_matrices("load_transposed", result, row, true);
  }

  float exchange(float value, int distance) {
    struct {
      float value;
      int distance;
      float result;
    } mine{value, distance, 0};
    block_.together(thread, "exchange", mine, [&](auto& lanes) {
      for (int n = 0; n < 32; ++n) lanes[n]->result = lanes[n ^ lanes[n]->distance]->value;
    });
    return mine.result;
  }

  bool any(bool x) {
    bool mine = x;
    block_.together(thread, "any", mine, [](auto& lanes) {
      bool found = false;
      for (const bool* lane : lanes) found = found || *lane;
      for (bool* lane : lanes) *lane = found;
    });
    return mine;
  }

  bool is_last_block(uint32_t* arrived, uint32_t blocks) {
    barrier();
    if (thread == 0) block_.is_last = ++*arrived == blocks;
    barrier();
    return block_.is_last;
  }

  void multiply(BFloat16 type, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    multiply_halves(type, "multiply_bfloat16", c, a, b0, b1);
  }
  void multiply(Float16 type, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    multiply_halves(type, "multiply_float16", c, a, b0, b1);
  }
  void multiply(TensorFloat32, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

  static uint32_t pack(BFloat16, float low, float high) {
    return bfloat16_bits(low) | static_cast<uint32_t>(bfloat16_bits(high)) << 16;
  }
  static uint32_t pack(Float16, float low, float high) {
    return float16_bits(low) | static_cast<uint32_t>(float16_bits(high)) << 16;
  }
  static float unpack(BFloat16, uint16_t bits) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }
  static float unpack(Float16, uint16_t bits) {
    return static_cast<float>(__builtin_bit_cast(Half, bits));
  }
  /// To nearest, ties away: what is left are 10 bits behind the point.
  static uint32_t round_to_tf32(float x) {
    if (x != x) return 0x7fffffffu;
    return (__builtin_bit_cast(uint32_t, x) + 0x1000u) & ~0x1fffu;
  }
  static int fresh(int x) { return x; }
  static float exp2(float x) {
    if (x == 0) return 1;
    const float power = std::exp2(x);
    if (power < 0x1p-126f) return 0;
    const bool up = __builtin_bit_cast(uint32_t, x) * 2654435761u >> 31;
    return power * (up ? 1 + 0x1p-22f : 1 - 0x1p-22f);
  }
  static float log(float x) { return std::log(x); }
  static float tanh(float x) { return std::tanh(x); }

 private:
#if defined(__aarch64__)  // where g++ 12 knows no _Float16 in C++
  using Half = __fp16;
#else
  using Half = _Float16;
#endif

  struct Operands {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  };
  /// c[16][8] += a[16][kDepth] b[kDepth][8]
  template <int kDepth>
  static void add_product(Operands* (&lanes)[32], const float (&a)[16][kDepth],
                          const float (&b)[kDepth][8]);

  static uint16_t bfloat16_bits(float x) {
    const auto bits = __builtin_bit_cast(uint32_t, x);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static uint16_t float16_bits(float x) {
    return __builtin_bit_cast(uint16_t, static_cast<Half>(x));
  }

  void count_conflicts(const char* instruction, int address, int words, int64_t& extra) {
    block_.together(thread, instruction, address, [&](auto& lanes) {
      int addresses[32];
      for (int n = 0; n < 32; ++n) addresses[n] = *lanes[n];
      extra += SharedMemory::extra_passes(addresses, 32, words);
    });
  }
  void load_matrices(const char* instruction, uint32_t (&result)[4], int row, bool transposed);
  template <class Type>
  void multiply_halves(Type, const char* instruction, float (&c)[4], const uint32_t (&a)[4],
                       uint32_t b0, uint32_t b1);

  EmulatedBlock& block_;
  InstructionCounts& counts_;
};

}  // namespace aero::kernels::cuda::testing
