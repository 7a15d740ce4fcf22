// The attention kernels compiled for this instruction set.
#include "kernels/cpu/attention_entropy_table.h"

namespace aero::kernels::cpu {

const AttentionEntropyKernels kAttentionEntropyScalar = attention_entropy_kernels();

}  // namespace aero::kernels::cpu
