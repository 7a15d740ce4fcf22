// The attention_entropy kernels compiled for this instruction set.
#include "kernels/cpu/attention_entropy_tables.h"
#include "kernels/cpu/attention_passes.h"
#include "kernels/cpu/table_of.h"

namespace aero::kernels::cpu {

const AttentionEntropyTable kAttentionEntropyAvx512 =
    table_of<AttentionEntropyForward, AttentionEntropyBackward>();

}  // namespace aero::kernels::cpu
