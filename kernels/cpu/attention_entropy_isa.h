// The attention kernels of each instruction set, as tables of functions.
#pragma once

#include "kernels/attention_entropy.h"

namespace aero::kernels::cpu {

/// One direction for one data type. `scratch` is the calling thread's own.
template <class Params>
struct AttentionKernel {
  int64_t (*scratch_bytes)(const Params& params);
  int64_t (*item_count)(const Params& params);
  void (*run)(const Params& params, void* scratch, int64_t first, int64_t last);
};

/// Indexed by DataType.
struct AttentionEntropyKernels {
  AttentionKernel<AttentionEntropyForwardParams> forward[4];
  AttentionKernel<AttentionEntropyBackwardParams> backward[4];
};

extern const AttentionEntropyKernels kAttentionEntropyScalar;
extern const AttentionEntropyKernels kAttentionEntropyAvx2;
extern const AttentionEntropyKernels kAttentionEntropyAvx512;

}  // namespace aero::kernels::cpu
