// Which versions of CUDA's toolkit, driver and PyTorch fit.
#include "kernels/cuda/versions.h"

#include <gtest/gtest.h>

namespace aero::kernels::cuda {
namespace {

TEST(CudaVersions, FitWhereTheDriverIsAsNewAsTheToolkit) {
  for (const int driver : {13000, 13020, 14000})
    for (const int torch : {0, 12060, 13000})
      for (const bool needs_ptx : {false, true})
        EXPECT_EQ(misfit({13000, driver, torch}, needs_ptx), "") << driver << " " << torch;
}

TEST(CudaVersions, AnOlderDriverOfTheSameMajorVersionRefusesOnlyPtx) {
  EXPECT_EQ(misfit({13010, 13000, 13000}), "");
  EXPECT_NE(misfit({13010, 13000, 13000}, true), "");
}

TEST(CudaVersions, ThatDoNotFitAreNamedWithWhatToDo) {
  EXPECT_EQ(misfit({13000, 12040, 12060}),
            "the kernels were built by CUDA 13.0, but the driver supports CUDA 12.4 (PyTorch uses "
            "CUDA 12.6): update the driver to one for CUDA 13.0, or rebuild aero-torch with the "
            "nvcc of CUDA 12.4 or older (CUDA_HOME)");
  EXPECT_NE(misfit({13000, 12040, 0}).find("(PyTorch uses CUDA of an unknown version)"),
            std::string::npos);
}

TEST(CudaVersions, WithoutADriverAreNotTheObstacle) {
  for (const bool needs_ptx : {false, true}) EXPECT_EQ(misfit({13000, 0, 12060}, needs_ptx), "");
}

}  // namespace
}  // namespace aero::kernels::cuda
