// Runs a kernel's items on torch's own threads, in scratch memory owned here.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <memory>
#include <new>

#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {

inline int64_t thread_count() { return static_cast<int64_t>(torch::stable::get_num_threads()); }

/// Scratch memory of one kernel call, aligned to a cache line, not initialised.
///
/// Each thread that calls keeps its last few megabytes for its next call. Where freed results lie
/// at the end of the heap, glibc gives them back to the system and every page is faulted in again:
/// 680 of them in forward and backward of attention at B = 8, H = 12, T = 128. Results allocated
/// below memory that stays are reused.
class Workspace {
 public:
  explicit Workspace(size_t bytes) {
    if (bytes > kMostKept) {
      own_ = allocated(bytes);
      data_ = own_.get();
      return;
    }
    static thread_local Memory kept;
    static thread_local size_t kept_bytes = 0;
    if (kept_bytes < bytes) {
      kept.reset();
      kept = allocated(bytes);
      kept_bytes = bytes;
    }
    data_ = kept.get();
  }

  void* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr size_t kMostKept = size_t{16} << 20U;

  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  using Memory = std::unique_ptr<void, Free>;
  static Memory allocated(size_t bytes) { return Memory(::operator new(bytes, kAlignment)); }

  Memory own_;  ///< memory that is too large to keep
  void* data_;
};

/// Does all items of a kernel call. The items of a thread are one contiguous range, so which thread
/// does which item depends on the number of threads alone.
template <class Params>
Workspace run_parallel(const Params& params) {
  using namespace kernels::cpu;
  Workspace workspace(workspace_bytes(params, thread_count()));
  torch::stable::parallel_for(0, item_count(params), 1, [&](int64_t first, int64_t last) {
    uint32_t thread = 0;
    torch_get_thread_idx(&thread);
    run(params, workspace.data(), first, last, thread);
  });
  return workspace;
}

}  // namespace aero::torch_ops
