// Whether torch lets products of float32 on a GPU round their operands.
#pragma once

namespace aero::torch_ops {

/// Whether torch.backends.cuda.matmul.fp32_precision is "tf32" now, however it became that:
/// torch.set_float32_matmul_precision, allow_tf32, or a setting of all backends. What torch's own
/// products on a GPU go by.
bool allows_tf32();

}  // namespace aero::torch_ops
