#include "tests/cpp/kernels/cuda/emulated_lane.h"

namespace aero::kernels::cuda::testing {
namespace {

/// The float next to `value` on the side of zero, or `value` itself.
float toward_zero(double value) {
  const auto nearest = static_cast<float>(value);
  if (!(std::abs(static_cast<double>(nearest)) > std::abs(value))) return nearest;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, nearest) - 1);
}

}  // namespace

void EmulatedLane::load_matrices(const char* instruction, uint32_t (&result)[4], int row,
                                 bool transposed) {
  struct Request {
    int row;
    uint32_t* result;
  } mine{row, result};
  block_.together(thread, instruction, mine, [&](Request*(&lanes)[32]) {
    SharedMemory& shared = block_.shared();
    uint16_t matrices[4][8][8];
    int addresses[32];
    for (int n = 0; n < 32; ++n) {
      addresses[n] = lanes[n]->row;
      uint32_t words[4];
      shared.load(thread / 32 * 32 + n, lanes[n]->row, words, 4);
      std::memcpy(matrices[n / 8][n % 8], words, 16);
    }
    shared.conflicts.matrices += SharedMemory::extra_passes(addresses, 32, 4);
    ++counts_.matrix_loads;
    for (int n = 0; n < 32; ++n)
      for (int m = 0; m < 4; ++m) {
        const int i = n / 4, j = n % 4 * 2;
        const uint32_t low = transposed ? matrices[m][j][i] : matrices[m][i][j];
        const uint32_t high = transposed ? matrices[m][j + 1][i] : matrices[m][i][j + 1];
        lanes[n]->result[m] = low | high << 16;
      }
  });
}

template <int kDepth>
void EmulatedLane::add_product(Operands* (&lanes)[32], const float (&a)[16][kDepth],
                               const float (&b)[kDepth][8]) {
  for (int i = 0; i < 16; ++i) {
    double sums[8] = {};
    for (int k = 0; k < kDepth; ++k)
      for (int j = 0; j < 8; ++j) sums[j] += static_cast<double>(a[i][k]) * b[k][j];
    for (int j = 0; j < 8; ++j) {
      float& c = lanes[i % 8 * 4 + j / 2]->c[i / 8 * 2 + j % 2];
      c = toward_zero(static_cast<double>(c) + sums[j]);
    }
  }
}

// Fragments as the PTX manual gives them for mma.m16n8k16 and mma.m16n8k8.tf32.
template <class Type>
void EmulatedLane::multiply_halves(Type type, const char* instruction, float (&c)[4],
                                   const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Operands mine{c, a, {b0, b1}};
  block_.together(thread, instruction, mine, [&](Operands*(&lanes)[32]) {
    float left[16][16], right[16][8];
    for (int n = 0; n < 32; ++n) {
      const int group = n / 4, member = n % 4;
      for (int r = 0; r < 4; ++r)
        for (int k = 0; k < 2; ++k)
          left[group + r % 2 * 8][member * 2 + k + r / 2 * 8] =
              unpack(type, static_cast<uint16_t>(lanes[n]->a[r] >> (16 * k)));
      for (int r = 0; r < 2; ++r)
        for (int k = 0; k < 2; ++k)
          right[member * 2 + k + r * 8][group] =
              unpack(type, static_cast<uint16_t>(lanes[n]->b[r] >> (16 * k)));
    }
    ++counts_.multiplications;
    add_product<16>(lanes, left, right);
  });
}

template void EmulatedLane::multiply_halves(BFloat16, const char*, float (&)[4],
                                            const uint32_t (&)[4], uint32_t, uint32_t);
template void EmulatedLane::multiply_halves(Float16, const char*, float (&)[4],
                                            const uint32_t (&)[4], uint32_t, uint32_t);

void EmulatedLane::multiply(TensorFloat32, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                            uint32_t b1) {
  // The hardware looks at 19 bits of each operand.
  const auto seen = [](uint32_t bits) { return __builtin_bit_cast(float, bits & ~0x1fffu); };
  Operands mine{c, a, {b0, b1}};
  block_.together(thread, "multiply_tf32", mine, [&](Operands*(&lanes)[32]) {
    float left[16][8], right[8][8];
    for (int n = 0; n < 32; ++n) {
      const int group = n / 4, member = n % 4;
      for (int r = 0; r < 4; ++r)
        left[group + r % 2 * 8][member + r / 2 * 4] = seen(lanes[n]->a[r]);
      for (int r = 0; r < 2; ++r) right[member + r * 4][group] = seen(lanes[n]->b[r]);
    }
    ++counts_.multiplications;
    add_product<8>(lanes, left, right);
  });
}

}  // namespace aero::kernels::cuda::testing
