// The stream that torch is putting work in, for kernels that know no torch.
#pragma once

#if defined(AERO_CUDA)

#include <torch/csrc/stable/accelerator.h>

#include "csrc/torch_ops/tensor_checks.h"
#include "kernels/cuda_queue.h"

namespace aero::torch_ops {

/// The device of `like`, current as long as this lives, and torch's current stream there.
/// Throws std::runtime_error where this torch has no CUDA, naming the operator.
class CudaQueue {
 public:
  CudaQueue(const char* op, const Tensor& like);

  const kernels::cuda::Queue& get() const { return queue_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  kernels::cuda::Queue queue_;
};

}  // namespace aero::torch_ops

#endif
