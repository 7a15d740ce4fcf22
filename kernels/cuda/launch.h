// Putting passes in a queue, and errors in words for those that cannot be.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/cuda/elements.h"
#include "kernels/cuda_queue.h"

namespace aero::kernels::cuda {

/// Blocks of a grid.
inline constexpr int64_t kMaxBlocks = 2'147'483'647;

/// Positions are 32-bit inside a head, with room for a tile beyond the end and for T + S. So are
/// the numbers of attention's heads.
inline constexpr int64_t kMaxPositions = 1'073'741'823;

/// The first thing that went wrong in a call.
struct LaunchError {
  cudaError_t code = cudaSuccess;
  bool too_many_blocks = false;
};

/// Throws std::invalid_argument("operator: what").
[[noreturn]] void refuse(const char* op, const std::string& what);

/// Refuses float64, which the kernels do not compute in.
void check_type(const char* op, const char* argument, DataType type);
/// Refuses more positions than there are numbers for.
void check_positions(const char* op, int64_t queries, int64_t keys);

/// Multiprocessors of the queue's device. Throws std::runtime_error where it cannot be asked.
int multiprocessors(const char* op, const Queue& queue);

struct LaunchShape {
  int64_t blocks;
  int threads, shared_bytes;
};

/// Puts a kernel in the queue, unless something went wrong before. More shared memory than 48 KiB
/// is asked for. What goes wrong is this call's own, and not left to the next one.
void launch_kernel(const void* kernel, const LaunchShape& shape, void** arguments,
                   cudaStream_t queue, LaunchError& error);

/// Chooses the queue's device, calls put(stream, error) and throws what went wrong in words. Also
/// throws, naming all three, where the CUDA versions of the kernels, the driver and PyTorch do not
/// fit.
void put_in_queue(const char* op, const Queue& queue,
                  const std::function<void(cudaStream_t, LaunchError&)>& put);

/// Calls launch_elements(Element{}, params, stream, error), which the file of that type defines.
template <class Params>
void launch_of_type(const Params& params, cudaStream_t stream, LaunchError& error) {
  with_element(params, [&](auto element) { launch_elements(element, params, stream, error); });
}

}  // namespace aero::kernels::cuda
