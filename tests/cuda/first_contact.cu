// How the tensor cores of a GPU round their sums, and how far 2^x is off: what the emulation and
// the budgets of errors assume (kernels/cuda/README.md).
//
//   nvcc -std=c++20 -arch=native -I. tests/cuda/first_contact.cu -o build/first_contact
//   build/first_contact
#include <cmath>
#include <cstdio>

#include "kernels/cuda/device_lane.h"

using namespace aero::kernels::cuda;

/// c + sum_k a[k] b[k], where what is not named is 0.
struct Case {
  const char* what;
  float c, a[16], b[16];
};

const Case kCases[] = {
    {"1 + 1.5 ulp/2: toward zero 1, nearest 1 + 2^-23", 1, {0x1p-12f}, {0x1.8p-12f}},
    {"1 - 2^-40: toward zero 1 - 2^-24, cut off before the sum 1", 1, {-0x1p-20f}, {0x1p-20f}},
    {"1 + 4 * 2^-24: one rounding 1 + 2^-22, cut off one by one 1",
     1,
     {0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f},
     {0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f}},
    {"1 + 2 * 2^-24, four apart: one instruction 1 + 2^-23, two halves 1",
     1,
     {0x1p-12f, 0, 0, 0, 0x1p-12f},
     {0x1p-12f, 0, 0, 0, 0x1p-12f}},
    {"1 + 2 * 2^-24, eight apart (not TF32): the same",
     1,
     {0x1p-12f, 0, 0, 0, 0, 0, 0, 0, 0x1p-12f},
     {0x1p-12f, 0, 0, 0, 0, 0, 0, 0, 0x1p-12f}},
    {"2^24 + 1 - 2^24 in one sum: exact 1, cut off 0 or 2", 0x1p24f, {1, -0x1p12f}, {1, 0x1p12f}},
    {"(1 + 2^-11) * 1 (TF32): beyond its digits ignored 1, rounded 1 + 2^-10",
     0,
     {1 + 0x1p-11f},
     {1}},
    {"(1 + 2^-11 + 2^-23) * 1 (TF32): ignored 1, rounded 1 + 2^-10",
     0,
     {1 + 0x1p-11f + 0x1p-23f},
     {1}},
};

template <class Element>
__global__ void multiply(Case given, float* sum) {
  DeviceLane lane;
  const int m = threadIdx.x % 4;
  float c[4] = {given.c, given.c, given.c, given.c};
  uint32_t a[2], b[2];
  for (int n = 0; n < 2; ++n) {
    if constexpr (Element::kBytes == 4) {
      a[n] = __float_as_uint(given.a[m + 4 * n]), b[n] = __float_as_uint(given.b[m + 4 * n]);
    } else {
      const int k = 2 * m + 8 * n;
      a[n] = DeviceLane::pack(Element{}, given.a[k], given.a[k + 1]);
      b[n] = DeviceLane::pack(Element{}, given.b[k], given.b[k + 1]);
    }
  }
  lane.multiply(Element{}, c, {a[0], a[0], a[1], a[1]}, b[0], b[1]);
  if (threadIdx.x == 0) *sum = c[0];
}

__global__ void powers(float first, float step, float* power) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  power[n] = DeviceLane::exp2(first + static_cast<float>(n) * step);
}

int main() {
  constexpr int kCount = 1 << 20;
  float* found = nullptr;
  if (const cudaError_t code = cudaMallocManaged(&found, kCount * sizeof(float))) {
    std::printf("no memory on a GPU: %s\n", cudaGetErrorString(code));
    return 1;
  }
  for (const Case& given : kCases) {
    std::printf("%s\n ", given.what);
    const auto say = [&](auto element, const char* name) {
      multiply<decltype(element)><<<1, 32>>>(given, found);
      cudaDeviceSynchronize();
      std::printf(" %s %a (%+g ulp of 1)", name, *found, (*found - 1.0) * 0x1p23);
    };
    say(TensorFloat32{}, "TF32"), say(BFloat16{}, "bfloat16"), say(Float16{}, "float16");
    std::printf("\n");
  }
  for (const float first : {-1.0f, -32.0f, -126.0f}) {
    const float step = -first / kCount;
    powers<<<kCount / 256, 256>>>(first, step, found);
    cudaDeviceSynchronize();
    double largest = 0;
    for (int n = 0; n < kCount; ++n) {
      const double exact = std::exp2(static_cast<double>(first + static_cast<float>(n) * step));
      largest = std::fmax(largest, std::fabs(found[n] / exact - 1));
    }
    std::printf("2^x from %g to 0: off by up to %.3g of 2^-22\n", first, largest * 0x1p22);
  }
  powers<<<1, 256>>>(0, -1, found);
  const cudaError_t code = cudaDeviceSynchronize();
  std::printf("2^0 = %a, 2^-1 = %a, 2^-126 = %a, 2^-127 = %a\n", found[0], found[1], found[126],
              found[127]);
  if (code != cudaSuccess) std::printf("error: %s\n", cudaGetErrorString(code));
  return code != cudaSuccess;
}
