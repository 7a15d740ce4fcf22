// The tables of attention_entropy kernels, one per instruction set.
#pragma once

#include "kernels/attention_entropy.h"
#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {

using AttentionEntropyTable =
    KernelTable<AttentionEntropyForwardParams, AttentionEntropyBackwardParams>;

extern const AttentionEntropyTable kAttentionEntropyScalar;
extern const AttentionEntropyTable kAttentionEntropyAvx2;
extern const AttentionEntropyTable kAttentionEntropyAvx512;
extern const AttentionEntropyTable kAttentionEntropyAvx512Bf16;
extern const AttentionEntropyTable kAttentionEntropyAmx;  ///< bfloat16 alone

}  // namespace aero::kernels::cpu
