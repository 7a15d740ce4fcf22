#include "kernels/cuda/launch.h"

#include <dlfcn.h>

#include <stdexcept>

#include "kernels/cuda/versions.h"

namespace aero::kernels::cuda {
namespace {

/// Of the runtime that PyTorch has loaded; ours is a copy of its own. 0 where there is none.
int version_of_torch() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {
      using Ask = cudaError_t (*)(int*);
      const auto ask = reinterpret_cast<Ask>(dlsym(library, "cudaRuntimeGetVersion"));
      int version = 0;
      if (ask && ask(&version) == cudaSuccess) return version;
    }
  return 0;
}

const CudaVersions& versions() {
  static const CudaVersions found = [] {
    CudaVersions all{CUDART_VERSION, 0, version_of_torch()};
    if (cudaDriverGetVersion(&all.driver) != cudaSuccess) all.driver = 0;
    return all;
  }();
  return found;
}

/// The one that does not fit; "" where all do.
const std::string& wrong_versions() {
  static const std::string wrong = misfit(versions());
  return wrong;
}

void check_versions(const std::string& op) {
  if (!wrong_versions().empty()) throw std::runtime_error(op + ": " + wrong_versions());
}

/// Whether a kernel had to be made of PTX, or could not be.
bool needed_ptx(cudaError_t code) {
  return code == cudaErrorUnsupportedPtxVersion || code == cudaErrorNoKernelImageForDevice;
}

[[noreturn]] void refuse_device(const std::string& op, int device, cudaError_t code) {
  throw std::runtime_error(op + ": CUDA device " + std::to_string(device) +
                           " cannot be used: " + cudaGetErrorString(code));
}

/// Chooses the device for this thread as long as it lives: the CUDA runtime of this library is its
/// own.
class DeviceChoice {
 public:
  DeviceChoice(const char* op, int device) : op_(op) {
    check_versions(op_);
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
  if (!wrong_versions().empty()) return wrong_versions().c_str();
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
  check_versions(op);
  int count = 0;
  const cudaError_t code =
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, queue.device);
  if (code != cudaSuccess) refuse_device(op, queue.device, code);
  return count;
}

void launch_kernel(const void* kernel, const LaunchShape& shape, void** arguments,
                   cudaStream_t queue, LaunchError& error) {
  if (shape.blocks == 0 || error.code != cudaSuccess) return;
  if (shape.blocks > kMaxBlocks) {
    error.too_many_blocks = true;
    return;
  }
  if (shape.shared_bytes > 48 * 1024)
    error.code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      shape.shared_bytes);
  // What it returns is its own: cudaGetLastError would also tell of earlier calls.
  if (error.code == cudaSuccess)
    error.code = cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(shape.blocks)),
                                  dim3(static_cast<unsigned>(shape.threads)), arguments,
                                  static_cast<size_t>(shape.shared_bytes), queue);
  if (error.code != cudaSuccess) cudaGetLastError();  // it is said below, and not to be said again
}

void copy_rows(const char* op, const std::vector<RowCopy>& copies, const Queue& queue) {
  put_in_queue(op, queue, [&](cudaStream_t stream, LaunchError& error) {
    for (const RowCopy& c : copies) {
      if (c.rows == 0 || c.row_bytes == 0 || error.code != cudaSuccess) continue;
      error.code =
          cudaMemcpy2DAsync(c.to, static_cast<size_t>(c.to_pitch), c.from,
                            static_cast<size_t>(c.from_pitch), static_cast<size_t>(c.row_bytes),
                            static_cast<size_t>(c.rows), cudaMemcpyDeviceToDevice, stream);
      if (error.code != cudaSuccess) cudaGetLastError();
    }
  });
}

void put_in_queue(const char* op, const Queue& queue,
                  const std::function<void(cudaStream_t, LaunchError&)>& put) {
  const DeviceChoice device(op, queue.device);
  LaunchError error;
  put(static_cast<cudaStream_t>(queue.stream), error);
  if (error.too_many_blocks)
    refuse(op, "the tensors must give at most " + std::to_string(kMaxBlocks) +
                   " blocks of work on CUDA, got more");
  if (error.code == cudaSuccess) return;
  const std::string wrong = needed_ptx(error.code) ? misfit(versions(), true) : "";
  throw std::runtime_error(std::string(op) + ": a CUDA kernel or copy could not be started: " +
                           cudaGetErrorString(error.code) + (wrong.empty() ? "" : "; ") + wrong);
}

}  // namespace aero::kernels::cuda
