// Kernels as tables of functions: one table per operator and instruction set, one entry per
// direction and data type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/dispatch.h"
#include "kernels/layout.h"

namespace aero::kernels::cpu {

/// One direction for one data type. `scratch` is the calling thread's own.
template <class Params>
struct Kernel {
  int64_t (*scratch_bytes)(const Params& params);
  int64_t (*item_count)(const Params& params);
  void (*run)(const Params& params, void* scratch, int64_t first, int64_t last);
};

/// Both directions, indexed by DataType.
template <class Forward, class Backward>
struct KernelTable {
  Kernel<Forward> forward[4];
  Kernel<Backward> backward[4];

  const Kernel<Forward>& of(const Forward& params) const {
    return forward[static_cast<int>(params.data_type)];
  }
  const Kernel<Backward>& of(const Backward& params) const {
    return backward[static_cast<int>(params.data_type)];
  }
};

/// The table to use now, of one per Isa up to kAvx512Bf16, which serves kAmx as well.
template <class Table>
const Table& table_in_use(const Table* const (&tables)[4]) {
  return *tables[std::min(static_cast<int>(isa()), static_cast<int>(Isa::kAvx512Bf16))];
}

/// Scratch of one thread, in whole cache lines so that threads share none.
template <class Params>
size_t scratch_bytes(const Kernel<Params>& kernel, const Params& params) {
  return (static_cast<size_t>(kernel.scratch_bytes(params)) + 63) / 64 * 64;
}

template <class Params>
void run_items(const Kernel<Params>& kernel, const Params& params, void* workspace, int64_t first,
               int64_t last, int64_t thread) {
  char* scratch =
      static_cast<char*>(workspace) + scratch_bytes(kernel, params) * static_cast<size_t>(thread);
  kernel.run(params, scratch, first, last);
}

}  // namespace aero::kernels::cpu
