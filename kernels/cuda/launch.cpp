#include "kernels/cuda/launch.h"

#include <stdexcept>

namespace aero::kernels::cuda {
namespace {

[[noreturn]] void refuse_device(const std::string& op, int device, cudaError_t code) {
  throw std::runtime_error(op + ": CUDA device " + std::to_string(device) +
                           " cannot be used: " + cudaGetErrorString(code));
}

/// Chooses the device for this thread as long as it lives: the CUDA runtime of this library is its
/// own.
class DeviceChoice {
 public:
  DeviceChoice(const char* op, int device) : op_(op) {
    cudaError_t code = cudaGetDevice(&before_);
    changed_ = code == cudaSuccess && before_ != device;
    if (changed_) code = cudaSetDevice(device);
    if (code == cudaSuccess) code = check_architecture(device);
    if (code != cudaSuccess) refuse_device(op_, device, code);
  }
  ~DeviceChoice() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceChoice(const DeviceChoice&) = delete;
  DeviceChoice& operator=(const DeviceChoice&) = delete;

 private:
  cudaError_t check_architecture(int device) const {
    int major = 0, minor = 0;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code == cudaSuccess)
      code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (code == cudaSuccess && major < 8)
      throw std::runtime_error(op_ +
                               ": needs a GPU of compute capability 8.0 or newer, "
                               "device " +
                               std::to_string(device) + " has " + std::to_string(major) + "." +
                               std::to_string(minor));
    return code;
  }

  std::string op_;
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

const char* obstacle() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) return cudaGetErrorString(code);
  return devices > 0 ? "" : "no CUDA device";
}

void refuse(const char* op, const std::string& what) {
  throw std::invalid_argument(std::string(op) + ": " + what);
}

void check_type(const char* op, const char* argument, DataType type) {
  if (type == DataType::kFloat64)
    refuse(op,
           std::string(argument) + " must be float32, bfloat16 or float16 on CUDA, got float64");
}

void check_positions(const char* op, int64_t queries, int64_t keys) {
  if (queries > kMaxPositions || keys > kMaxPositions)
    refuse(op, "T and S must be at most " + std::to_string(kMaxPositions) + " on CUDA, got " +
                   std::to_string(queries) + " and " + std::to_string(keys));
}

int multiprocessors(const char* op, const Queue& queue) {
  int count = 0;
  const cudaError_t code =
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, queue.device);
  if (code != cudaSuccess) refuse_device(op, queue.device, code);
  return count;
}

void put_in_queue(const char* op, const Queue& queue,
                  const std::function<void(cudaStream_t, LaunchError&)>& put) {
  const DeviceChoice device(op, queue.device);
  LaunchError error;
  put(static_cast<cudaStream_t>(queue.stream), error);
  if (error.too_many_blocks)
    refuse(op, "the tensors must give at most " + std::to_string(kMaxBlocks) +
                   " blocks of work on CUDA, got more");
  if (error.code != cudaSuccess)
    throw std::runtime_error(std::string(op) + ": a CUDA kernel could not be started: " +
                             cudaGetErrorString(error.code));
}

}  // namespace aero::kernels::cuda
