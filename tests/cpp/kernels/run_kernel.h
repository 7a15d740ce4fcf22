// Running a kernel under a chosen instruction set, with checked memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/attention_entropy.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::testing {

/// Sets AERO_CPU_ISA for as long as it lives.
class ScopedIsa {
 public:
  explicit ScopedIsa(const std::string& name) { setenv("AERO_CPU_ISA", name.c_str(), 1); }
  ~ScopedIsa() { unsetenv("AERO_CPU_ISA"); }
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;
};

/// Runs a kernel as the operators do: one contiguous range of items per thread, here one after the
/// other. The workspace starts as NaN.
template <class Params>
void run_kernel(const Params& params, int64_t threads) {
  const size_t bytes = cpu::workspace_bytes(params, threads);
  auto* workspace = static_cast<unsigned char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
  std::memset(workspace, 0xff, bytes);
  const int64_t items = cpu::item_count(params);
  for (int64_t thread = 0; thread < threads; ++thread)
    cpu::run(params, workspace, items * thread / threads, items * (thread + 1) / threads, thread);
  std::free(workspace);
}

}  // namespace aero::kernels::testing
