// Runs a kernel's items on torch's own threads, in scratch memory owned here.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <memory>

#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {

inline int64_t thread_count() { return static_cast<int64_t>(torch::stable::get_num_threads()); }

/// Scratch memory of one kernel call, aligned to a cache line.
class Workspace {
 public:
  Workspace(const Tensor& like, size_t bytes)
      : memory_(empty(like, {static_cast<int64_t>(bytes + kAlignment)}, ScalarType::Byte)),
        bytes_(bytes) {}

  void* data() const {
    void* start = memory_.mutable_data_ptr();
    size_t space = bytes_ + kAlignment;
    return std::align(kAlignment, bytes_, start, space);
  }

 private:
  static constexpr size_t kAlignment = 64;
  Tensor memory_;
  size_t bytes_;
};

/// Does all items of a kernel call. The items of a thread are one contiguous range, so which thread
/// does which item depends on the number of threads alone.
template <class Params>
Workspace run_parallel(const Params& params, const Tensor& like) {
  using namespace kernels::cpu;
  Workspace workspace(like, workspace_bytes(params, thread_count()));
  torch::stable::parallel_for(0, item_count(params), 1, [&](int64_t first, int64_t last) {
    uint32_t thread = 0;
    torch_get_thread_idx(&thread);
    run(params, workspace.data(), first, last, thread);
  });
  return workspace;
}

}  // namespace aero::torch_ops
