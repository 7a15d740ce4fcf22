// How this copy of the native code was built, and the features of its processor.

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "csrc/bindings/bindings.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

py::dict build_info() {
  py::dict info;
  info["version"] = AERO_VERSION;
  info["compiler"] = AERO_COMPILER;
  info["build_type"] = AERO_BUILD_TYPE;
  info["cxx_standard"] = static_cast<std::int64_t>(__cplusplus);
  info["pybind11"] =
      PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MINOR);
  return info;
}

// __builtin_cpu_supports takes a literal only.
std::vector<std::string> cpu_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) features.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) features.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) features.emplace_back("avx512dq");
  if (__builtin_cpu_supports("avx512vl")) features.emplace_back("avx512vl");
  if (__builtin_cpu_supports("avx512bf16")) features.emplace_back("avx512bf16");
  if (__builtin_cpu_supports("amx-bf16")) features.emplace_back("amx-bf16");
#endif
  return features;
}

}  // namespace

void bind_build_info(py::module_& module) {
  module.def(
      "build_info", &build_info,
      "How the native code was built: version, compiler, build_type, cxx_standard, pybind11.");
  module.def("cpu_features", &cpu_features,
             "Instruction sets of this processor that the kernels know; empty outside x86-64.");
}

}  // namespace aero::bindings
