#include "csrc/torch_ops/cuda_queue.h"

#include <string>

#if defined(AERO_CUDA)
#include <stdexcept>

// Weak: only a torch with CUDA has it. It is found because libtorch.so, which needs
// libtorch_cuda.so there, is among the libraries that this one needs.
extern "C" __attribute__((weak)) int32_t aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                            void** stream);

namespace aero::torch_ops {

CudaQueue::CudaQueue(const char* op, const Tensor& like) : guard_(like.get_device_index()) {
  if (!aoti_torch_get_current_cuda_stream)
    throw std::runtime_error(std::string(op) + ": this PyTorch has no CUDA");
  queue_.device = like.get_device_index();
  if (aoti_torch_get_current_cuda_stream(queue_.device, &queue_.stream) != 0)
    throw std::runtime_error(std::string(op) + ": PyTorch has no current stream for CUDA device " +
                             std::to_string(queue_.device));
}

}  // namespace aero::torch_ops
#endif

/// The reason why the CUDA kernels cannot run, "" where nothing does; a plain C symbol like
/// aero_cpu_isa.
extern "C" __attribute__((visibility("default"))) const char* aero_cuda_obstacle() {
  thread_local std::string text;
#if defined(AERO_CUDA)
  text = aero::kernels::cuda::obstacle();
#else
  text = "aero-torch was built without CUDA kernels (AERO_CUDA)";
#endif
  return text.c_str();
}
