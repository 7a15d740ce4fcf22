// kernels/cuda/launch.cpp over a CUDA runtime of our own, which refuses as it is told to; for
// tests/python/test_cuda_launchers.py. The one argument is the version that the driver supports.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/launch.h"

namespace {

int driver_version = 0;
cudaError_t of_attributes = cudaSuccess, of_launches = cudaSuccess, last = cudaSuccess;
int launches = 0;

cudaError_t remembered(cudaError_t code) {
  if (code != cudaSuccess) last = code;
  return code;
}

}  // namespace

extern "C" {
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 9;
  return driver_version < CUDART_VERSION ? cudaErrorInsufficientDriver : cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorInvalidValue            ? "invalid argument"
         : code == cudaErrorUnsupportedPtxVersion ? "unsupported toolchain"
         : code == cudaErrorLaunchOutOfResources  ? "too many resources"
                                                  : "another error";
}
cudaError_t cudaGetLastError() {
  const cudaError_t code = last;
  last = cudaSuccess;
  return code;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return remembered(of_attributes);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  if (kind != cudaMemcpyDeviceToDevice || width > to_pitch || width > from_pitch)
    return remembered(cudaErrorInvalidValue);
  for (size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<char*>(to) + row * to_pitch,
                static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  ++launches;
  return remembered(of_launches);
}
}

namespace {

using namespace aero::kernels::cuda;

/// Says what a call of two kernels came to, the second with much shared memory. A call with a plan
/// asks for the multiprocessors first, as the backward pass of attention does.
void say(const char* what, bool with_plan = false) {
  const int before = launches;
  const char* end = "done";
  std::printf("%s: ", what);
  try {
    if (with_plan) multiprocessors("operator", Queue{});
    put_in_queue("operator", Queue{}, [&](cudaStream_t stream, LaunchError& error) {
      for (const int shared_bytes : {0, 64 * 1024})
        launch_kernel(nullptr, {2, 32, shared_bytes}, nullptr, stream, error);
    });
  } catch (const std::runtime_error& error) {
    std::printf("%s; ", error.what());
    end = "refused";
  }
  std::printf("%s after %d launches\n", end, launches - before);
}

/// Says what copies of rows made of a row of letters.
void say_copied(const std::vector<aero::kernels::RowCopy>& copies, const char* to) {
  try {
    copy_rows("operator", copies, Queue{});
    std::printf("copies: %s\n", to);
  } catch (const std::runtime_error& error) {
    std::printf("a refused copy: %s\n", error.what());
  }
}

}  // namespace

int main(int, char** arguments) {
  driver_version = std::atoi(arguments[1]);
  say("a call with a plan", true);
  say("a call");
  of_attributes = cudaErrorInvalidValue;
  say("a refused attribute");
  of_attributes = cudaSuccess;
  say("the call after it");
  last = cudaErrorInvalidValue;
  say("a call after an error of someone else");
  of_launches = cudaErrorLaunchOutOfResources;
  say("a refused launch");
  of_launches = cudaErrorUnsupportedPtxVersion;
  say("refused PTX");
  of_launches = cudaSuccess;
  say("the last call");
  char blocks[] = "abcdef", rows[] = "......";  // [H, T] = [2, 3] in sequences of 1 and 2
  say_copied({{rows, 3, blocks, 1, 1, 2}, {rows + 1, 3, blocks + 2, 2, 2, 2}, {}}, rows);
  say_copied({{rows, 3, blocks, 1, 2, 2}}, rows);
  std::printf("obstacle: %s\n", obstacle());
  return 0;
}
