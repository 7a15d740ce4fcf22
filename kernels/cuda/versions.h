// Whether the CUDA versions of toolkit, driver and PyTorch fit; knows no CUDA.
#pragma once

#include <string>

namespace aero::kernels::cuda {

/// Each 1000 * major + 10 * minor, or 0 where it is not known.
struct CudaVersions {
  int toolkit = 0;  ///< whose nvcc made the kernels, and whose runtime starts them
  int driver = 0;   ///< the newest that the driver supports
  int torch = 0;    ///< of the runtime that PyTorch has loaded
};

/// What does not fit and what to do, naming all three; "" where they fit. A driver of the toolkit's
/// major version runs machine code of a newer minor version but refuses its PTX, which only a GPU
/// needs that the kernels were not assembled for: `needs_ptx`.
std::string misfit(const CudaVersions& versions, bool needs_ptx = false);

}  // namespace aero::kernels::cuda
