// The lane of a GPU: each member is an instruction or two. lane.h describes them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/lane.h"

namespace aero::kernels::cuda {

extern __shared__ __align__(128) unsigned char shared_memory[];

class DeviceLane {
 public:
  int thread = static_cast<int>(threadIdx.x);

  __device__ __forceinline__ void barrier() { __syncthreads(); }

  __device__ __forceinline__ void copy_async(int to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  }
  template <int kMissing>
  __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kMissing) : "memory");
  }

  __device__ __forceinline__ void store_words(int to, const uint32_t (&words)[1]) {
    *reinterpret_cast<uint32_t*>(shared_memory + to) = words[0];
  }
  __device__ __forceinline__ void store_words(int to, const uint32_t (&words)[2]) {
    *reinterpret_cast<uint2*>(shared_memory + to) = make_uint2(words[0], words[1]);
  }
  __device__ __forceinline__ void store_words(int to, const uint32_t (&words)[4]) {
    *reinterpret_cast<uint4*>(shared_memory + to) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ __forceinline__ void load_words(uint32_t (&words)[1], int from) {
    words[0] = *reinterpret_cast<const uint32_t*>(shared_memory + from);
  }
  __device__ __forceinline__ void load_words(uint32_t (&words)[2], int from) {
    const uint2 value = *reinterpret_cast<const uint2*>(shared_memory + from);
    words[0] = value.x, words[1] = value.y;
  }
  __device__ __forceinline__ void load_words(uint32_t (&words)[4], int from) {
    const uint4 value = *reinterpret_cast<const uint4*>(shared_memory + from);
    words[0] = value.x, words[1] = value.y, words[2] = value.z, words[3] = value.w;
  }

  __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(row))
                 : "memory");
  }
  __device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], int row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(row))
                 : "memory");
  }

  __device__ __forceinline__ float exchange(float value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
  }

  __device__ __forceinline__ bool any(bool x) { return __any_sync(0xffffffffu, x) != 0; }

  __device__ __forceinline__ bool is_last_block(uint32_t* arrived, uint32_t blocks) {
    // Writes of this block, then the number that says so; the number, then reads of the others'.
    __threadfence();
    __syncthreads();
    const bool last = thread == 0 && atomicAdd(arrived, 1u) + 1 == blocks;
    const bool any = __syncthreads_or(last) != 0;
    __threadfence();
    return any;
  }

  __device__ __forceinline__ void multiply(BFloat16, float (&c)[4], const uint32_t (&a)[4],
                                           uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ __forceinline__ void multiply(Float16, float (&c)[4], const uint32_t (&a)[4],
                                           uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ __forceinline__ void multiply(TensorFloat32, float (&c)[4], const uint32_t (&a)[4],
                                           uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  __device__ __forceinline__ static uint32_t pack(BFloat16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ __forceinline__ static uint32_t pack(Float16, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ __forceinline__ static float unpack(BFloat16, uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  __device__ __forceinline__ static float unpack(Float16, uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
  }
  __device__ __forceinline__ static uint32_t round_to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(x));
    return bits;
  }
  __device__ __forceinline__ static int fresh(int x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  __device__ __forceinline__ static float exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
    return power;
  }
  __device__ __forceinline__ static float log(float x) { return logf(x); }
  __device__ __forceinline__ static float tanh(float x) { return tanhf(x); }

 private:
  __device__ __forceinline__ static uint32_t address(int offset) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)) +
           static_cast<uint32_t>(offset);
  }
};

}  // namespace aero::kernels::cuda
