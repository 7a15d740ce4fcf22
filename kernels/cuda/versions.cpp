#include "kernels/cuda/versions.h"

namespace aero::kernels::cuda {
namespace {

std::string name_of(int version) {
  if (version == 0) return "of an unknown version";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string misfit(const CudaVersions& versions, bool needs_ptx) {
  const int unit = needs_ptx ? 10 : 1000;
  // Where there is no driver at all, the runtime says so.
  if (versions.driver == 0 || versions.driver / unit >= versions.toolkit / unit) return "";
  return "the kernels were built by CUDA " + name_of(versions.toolkit) +
         ", but the driver supports CUDA " + name_of(versions.driver) + " (PyTorch uses CUDA " +
         name_of(versions.torch) + "): update the driver to one for CUDA " +
         name_of(versions.toolkit) + ", or rebuild aero-torch with the nvcc of CUDA " +
         name_of(versions.driver) + " or older (CUDA_HOME)";
}

}  // namespace aero::kernels::cuda
