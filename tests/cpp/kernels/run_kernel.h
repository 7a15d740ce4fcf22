// Running a kernel under a chosen instruction set, with checked memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "tests/cpp/kernels/guarded_memory.h"

namespace aero::kernels::testing {

/// Sets AERO_CPU_ISA for as long as it lives.
class ScopedIsa {
 public:
  explicit ScopedIsa(const std::string& name) { setenv("AERO_CPU_ISA", name.c_str(), 1); }
  ~ScopedIsa() { unsetenv("AERO_CPU_ISA"); }
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;
};

/// Attention in bfloat16 runs these kernels instead of those of the instruction set in use, if set.
inline const cpu::AttentionEntropyKernels* bfloat16_attention = nullptr;

inline bool is_replaced(const AttentionEntropyParams& params) {
  return bfloat16_attention && params.data_type == DataType::kBFloat16;
}
template <class Params>
size_t workspace_bytes(const Params& params, int64_t threads) {
  if constexpr (std::is_base_of_v<AttentionEntropyParams, Params>)
    if (is_replaced(params))
      return cpu::scratch_bytes(bfloat16_attention->of(params), params) *
             static_cast<size_t>(threads);
  return cpu::workspace_bytes(params, threads);
}
template <class Params>
int64_t item_count(const Params& params) {
  if constexpr (std::is_base_of_v<AttentionEntropyParams, Params>)
    if (is_replaced(params)) return bfloat16_attention->of(params).item_count(params);
  return cpu::item_count(params);
}
template <class Params>
void run_range(const Params& params, void* workspace, int64_t first, int64_t last, int64_t thread) {
  if constexpr (std::is_base_of_v<AttentionEntropyParams, Params>)
    if (is_replaced(params))
      return cpu::run_items(bfloat16_attention->of(params), params, workspace, first, last, thread);
  cpu::run(params, workspace, first, last, thread);
}

/// What the scratch memory of a kernel holds before it runs: NaN in every floating-point type.
inline constexpr unsigned char kPoison = 0xff;

/// Scratch memory of one call, with `filler` in every byte.
template <class Params>
Buffer<unsigned char, 64> workspace_of(const Params& params, int64_t threads,
                                       unsigned char filler = kPoison) {
  return Buffer<unsigned char, 64>(workspace_bytes(params, threads), filler);
}

/// Whether the ranges of the threads run one after the other or from threads of their own.
enum class Threads : uint8_t { kInTurn, kAtOnce };

/// Does all items, one contiguous range per thread, as the operators do.
template <class Params>
void run_items(const Params& params, void* workspace, int64_t threads, Threads how) {
  const int64_t items = item_count(params);
  std::vector<std::thread> running;
  for (int64_t thread = 0; thread < threads; ++thread) {
    const auto run_share = [&, thread] {
      run_range(params, workspace, items * thread / threads, items * (thread + 1) / threads,
                thread);
    };
    if (how == Threads::kAtOnce)
      running.emplace_back(run_share);
    else
      run_share();
  }
  for (std::thread& thread : running) thread.join();
  if constexpr (requires { cpu::finish(params); }) cpu::finish(params);
}

template <class Params>
void run_kernel(const Params& params, int64_t threads, unsigned char filler = kPoison) {
  run_items(params, workspace_of(params, threads, filler).data(), threads, Threads::kInTurn);
}

template <class Params>
void run_kernel_at_once(const Params& params, int64_t threads) {
  run_items(params, workspace_of(params, threads).data(), threads, Threads::kAtOnce);
}

}  // namespace aero::kernels::testing
