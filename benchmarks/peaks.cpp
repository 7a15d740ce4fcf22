// What the machine can do at most with a given number of threads: fused multiply-adds in float32,
// bfloat16 dot products, or products of AMX's tiles where there are some, powers of two as the
// kernels compute them, bytes read from memory.
// Compiled for the machine and run by peaks.py: `peaks THREADS SECONDS` prints them as JSON.
//
// 24 accumulators, each written out: fewer do not cover the latency of 4 cycles times 2 units, and
// an array of them the compiler may keep in memory; either way the peak comes out up to 2x too low.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cpu/simd_elements.h"

namespace {

using Clock = std::chrono::steady_clock;

#if defined(__AVX512F__)
using Vector = __m512;
Vector splat(float x) { return _mm512_set1_ps(x); }
Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Vector = __m256;
Vector splat(float x) { return _mm256_set1_ps(x); }
Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#endif
constexpr double kLanes = sizeof(Vector) / sizeof(float);

constexpr int64_t kSteps = 4096;  // between looks at the clock
#if defined(__AMX_BF16__)
constexpr int64_t kTileSteps = 256;
#endif

// The empty assembly hides the accumulators' values, so that no step can be left out or merged.
#define AERO_EACH(do_this)                                                                    \
  do_this(0) do_this(1) do_this(2) do_this(3) do_this(4) do_this(5) do_this(6) do_this(7)     \
      do_this(8) do_this(9) do_this(10) do_this(11) do_this(12) do_this(13) do_this(14)       \
          do_this(15) do_this(16) do_this(17) do_this(18) do_this(19) do_this(20) do_this(21) \
              do_this(22) do_this(23)
#define AERO_DECLARE(n) Vector sum##n = splat(static_cast<float>(n));
#define AERO_ADD(n) sum##n = multiply_add(a, b, sum##n);
#define AERO_TOTAL(n) total = multiply_add(sum##n, a, total);

/// A race of some threads: they prepare, start together, and work until told to stop.
struct Race {
  explicit Race(int threads) : start(threads + 1) {}
  bool runs() const { return !stop.load(std::memory_order_relaxed); }

  std::barrier<> start;
  std::atomic<bool> stop{false};
};

/// Floating-point operations done in the race.
double fp32_work(Race& race, float* sink) {
  const Vector a = splat(0.999f), b = splat(1e-3f);
  AERO_EACH(AERO_DECLARE)
  double steps = 0;
  race.start.arrive_and_wait();
  while (race.runs()) {
    for (int64_t i = 0; i < kSteps; ++i) {
      AERO_EACH(AERO_ADD)
      asm volatile("");
    }
    steps += kSteps;
  }
  Vector total = splat(0);
  AERO_EACH(AERO_TOTAL)
  *sink = total[0];
  return steps * 24 * kLanes * 2;
}

#if defined(__AMX_BF16__)
/// A product takes 16 cycles and ends after 52, so that six sums cover it.
double bf16_work(Race& race, float* sink) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const shapes;
  alignas(64) float sums[16 * 16];
  __asm__ volatile(
      "ldtilecfg %0\n"
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
      "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7"
      :
      : "m"(shapes));
  double steps = 0;
  race.start.arrive_and_wait();
  while (race.runs()) {
    for (int64_t i = 0; i < kTileSteps; ++i)
      __asm__ volatile(
          "tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n tdpbf16ps %%tmm7, %%tmm6, %%tmm1\n"
          "tdpbf16ps %%tmm7, %%tmm6, %%tmm2\n tdpbf16ps %%tmm7, %%tmm6, %%tmm3\n"
          "tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n tdpbf16ps %%tmm7, %%tmm6, %%tmm5" ::);
    steps += kTileSteps;
  }
  __asm__ volatile("tilestored %%tmm0, (%0,%1,1)\n tilerelease"
                   :
                   : "r"(sums), "r"(int64_t{64})
                   : "memory");
  *sink = sums[0];
  return steps * 6 * 16 * 16 * 32 * 2;
}
#elif defined(__AVX512BF16__)
#define AERO_DOT(n) sum##n = _mm512_dpbf16_ps(sum##n, (__m512bh)pairs, (__m512bh)pairs);
double bf16_work(Race& race, float* sink) {
  const Vector a = splat(0.999f);
  const __m512i pairs = _mm512_set1_epi32(0x3c003c00);
  AERO_EACH(AERO_DECLARE)
  double steps = 0;
  race.start.arrive_and_wait();
  while (race.runs()) {
    for (int64_t i = 0; i < kSteps; ++i) {
      AERO_EACH(AERO_DOT)
      asm volatile("");
    }
    steps += kSteps;
  }
  Vector total = splat(0);
  AERO_EACH(AERO_TOTAL)
  *sink = total[0];
  return steps * 24 * kLanes * 4;
}
#else
double bf16_work(Race& race, float*) {
  race.start.arrive_and_wait();
  return 0;
}
#endif

/// Weights of scores and their two sums in the race, from and to the first-level cache.
double exp2_work(Race& race, float* sink) {
  namespace cpu = aero::kernels::cpu;
  using Vec = cpu::Vec<float>;
  constexpr int kCount = 64, kVector = cpu::kLanes<float>;
  alignas(64) float scores[kCount * kVector], weights[kCount * kVector];
  for (int i = 0; i < kCount * kVector; ++i) scores[i] = -0.01f * static_cast<float>(i);
  Vec sum{}, score_sum{}, maximum{};
  asm volatile("" : "+v"(maximum));
  double values = 0;
  race.start.arrive_and_wait();
  while (race.runs()) {
    for (int n = 0; n < kCount; n += 4) {
#pragma GCC unroll 4
      for (int v = n; v < n + 4; ++v) {
        const Vec x = cpu::load(scores + v * kVector) - maximum, weight = cpu::exp2(x);
        sum += weight;
        score_sum += weight * x;
        cpu::store(weights + v * kVector, weight);
      }
    }
    asm volatile("" : : "r"(weights) : "memory");
    values += kCount * kVector;
  }
  *sink = sum[0] + score_sum[0];
  return values;
}

/// Bytes read in the race, from a buffer larger than the caches.
double read_work(Race& race, float* sink) {
  constexpr size_t kCount = size_t{128} << 18;  // 128 MiB per thread
  const std::vector<float> buffer(kCount, 1.0f);
  const Vector a = splat(0.999f);
  AERO_EACH(AERO_DECLARE)
  constexpr size_t kStep = 8 * sizeof(Vector) / sizeof(float);
  double bytes = 0;
  race.start.arrive_and_wait();
  while (race.runs()) {
    for (size_t block = 0; block < kCount && race.runs();) {
      const size_t end = block + (size_t{1} << 20);
      bytes += static_cast<double>((end - block) * sizeof(float));
      for (; block < end; block += kStep) {
        const auto* p = reinterpret_cast<const Vector*>(buffer.data() + block);
        const auto load = [&](int n) {
          Vector x;
          __builtin_memcpy(&x, p + n, sizeof(x));
          return x;
        };
        sum0 = multiply_add(a, load(0), sum0), sum1 = multiply_add(a, load(1), sum1);
        sum2 = multiply_add(a, load(2), sum2), sum3 = multiply_add(a, load(3), sum3);
        sum4 = multiply_add(a, load(4), sum4), sum5 = multiply_add(a, load(5), sum5);
        sum6 = multiply_add(a, load(6), sum6), sum7 = multiply_add(a, load(7), sum7);
      }
    }
  }
  Vector total = splat(0);
  AERO_EACH(AERO_TOTAL)
  *sink = total[0];
  return bytes;
}

/// Units of work per second of all threads together.
template <class Work>
double rate(Work work, int threads, double seconds) {
  Race race(threads);
  std::vector<double> done(static_cast<size_t>(threads));
  std::vector<float> sinks(done.size());
  std::vector<std::thread> running;
  for (size_t t = 0; t < done.size(); ++t)
    running.emplace_back([&, t] { done[t] = work(race, &sinks[t]); });
  race.start.arrive_and_wait();
  const auto start = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  race.stop = true;
  for (std::thread& thread : running) thread.join();
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  return std::accumulate(done.begin(), done.end(), 0.0) / took;
}

/// Best of several short looks: interruptions only ever lower a peak.
template <class Work>
double peak(Work work, int threads, double seconds) {
  double best = 0;
  for (int look = 0; look < 5; ++look) {
    const double now = rate(work, threads, seconds / 5);
    best = now > best ? now : best;
  }
  return best;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return std::fprintf(stderr, "usage: peaks THREADS SECONDS\n"), 1;
#if defined(__AMX_BF16__)
  // ARCH_REQ_XCOMP_PERM for the registers of tiles, as kernels/cpu/dispatch.cpp asks.
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0)
    return std::fprintf(stderr, "peaks: Linux refuses the tile registers\n"), 1;
#endif
  const int threads = std::atoi(arguments[1]);
  const double seconds = std::atof(arguments[2]);
  const auto print = [&](const char* name, auto work, const char* after) {
    std::printf("\"%s\": %.2f%s", name, peak(work, threads, seconds) / 1e9, after);
  };
  std::printf("{");
  print("fp32_gflops", fp32_work, ", ");
  print("bf16_gflops", bf16_work, ", ");
  print("exp2_gvalues", exp2_work, ", ");
  print("read_gbytes", read_work, "}\n");
}
