// Attention with temperature and entropy on a GPU: what cannot be launched is said in words.
#include "kernels/attention_entropy.h"

#include <stdexcept>
#include <string>

#include "kernels/cuda/attention_entropy_kernels.h"

namespace aero::kernels::cuda {
namespace {

/// Positions are 32-bit inside a head, with room for a tile beyond the end and for T + S.
constexpr int64_t kMaxPositions = 1'073'741'823;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("attention_entropy: " + what);
}

void check(const AttentionEntropyParams& p) {
  if (p.data_type == DataType::kFloat64)
    refuse("q must be float32, bfloat16 or float16 on CUDA, got float64");
  if (p.head_dim > kMaxHeadDim)
    refuse("D must be at most " + std::to_string(kMaxHeadDim) + ", got " +
           std::to_string(p.head_dim));
  if (p.queries > kMaxPositions || p.keys > kMaxPositions)
    refuse("T and S must be at most " + std::to_string(kMaxPositions) + " on CUDA, got " +
           std::to_string(p.queries) + " and " + std::to_string(p.keys));
}

/// Chooses the device for this thread as long as it lives: the CUDA runtime of this library is its
/// own.
class DeviceChoice {
 public:
  explicit DeviceChoice(int device) {
    cudaError_t code = cudaGetDevice(&before_);
    changed_ = code == cudaSuccess && before_ != device;
    if (changed_) code = cudaSetDevice(device);
    if (code == cudaSuccess) code = check_architecture(device);
    if (code != cudaSuccess)
      throw std::runtime_error("attention_entropy: CUDA device " + std::to_string(device) +
                               " cannot be used: " + cudaGetErrorString(code));
  }
  ~DeviceChoice() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceChoice(const DeviceChoice&) = delete;
  DeviceChoice& operator=(const DeviceChoice&) = delete;

 private:
  static cudaError_t check_architecture(int device) {
    int major = 0, minor = 0;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code == cudaSuccess)
      code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (code == cudaSuccess && major < 8)
      throw std::runtime_error(
          "attention_entropy: needs a GPU of compute capability 8.0 or newer, "
          "device " +
          std::to_string(device) + " has " + std::to_string(major) + "." + std::to_string(minor));
    return code;
  }

  int before_ = 0;
  bool changed_ = false;
};

template <class Params>
void launch_checked(const Params& params, DataType type, const Queue& queue) {
  const DeviceChoice device(queue.device);
  auto* stream = static_cast<cudaStream_t>(queue.stream);
  LaunchError error;
  if (type == DataType::kBFloat16)
    launch_bfloat16(params, stream, error);
  else if (type == DataType::kFloat16)
    launch_float16(params, stream, error);
  else
    launch_float32(params, stream, error);
  if (error.too_many_blocks)
    refuse("B, H, T and S must give at most " + std::to_string(kMaxBlocks) +
           " tiles in all, got more");
  if (error.code != cudaSuccess)
    throw std::runtime_error(
        std::string("attention_entropy: a CUDA kernel could not be started: ") +
        cudaGetErrorString(error.code));
}

}  // namespace

const char* obstacle() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess) return cudaGetErrorString(code);
  return devices > 0 ? "" : "no CUDA device";
}

size_t workspace_bytes(const AttentionEntropyBackwardParams& params) {
  return static_cast<size_t>(RowTable::bytes(params));
}

void launch(const AttentionEntropyForwardParams& params, const Queue& queue) {
  check(params);
  launch_checked(params, params.data_type, queue);
}

void launch(const AttentionEntropyBackwardParams& params, void* workspace, const Queue& queue) {
  check(params);
  launch_checked(BackwardParams{params, workspace}, params.data_type, queue);
}

}  // namespace aero::kernels::cuda
