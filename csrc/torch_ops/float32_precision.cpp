#include "csrc/torch_ops/float32_precision.h"

// On macOS the linker has an underscore before every name.
#if defined(__APPLE__)
#define AERO_LINKED_NAME(name) asm("_" name)
#else
#define AERO_LINKED_NAME(name) asm(name)
#endif

extern "C" {

// at::globalContext() and at::Context::float32Precision(backend, op), by the names that the linker
// has for them: under the stable ABI their header cannot be included. Both are the same in all
// torches from 2.10 on. Weak: a later one may lack them, and float32 is then never rounded.
__attribute__((weak)) const void* aero_torch_context() AERO_LINKED_NAME("_ZN2at13globalContextEv");
__attribute__((weak)) int aero_torch_float32_precision(const void* context, int backend,
                                                       int operation)
    AERO_LINKED_NAME("_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE");

}  // extern "C"

namespace aero::torch_ops {

bool allows_tf32() {
  // Of at::Float32Backend, at::Float32Op and at::Float32Precision.
  constexpr int kCuda = 1, kMatrixProduct = 3, kTensorFloat32 = 2;
  if (!aero_torch_context || !aero_torch_float32_precision) return false;
  return aero_torch_float32_precision(aero_torch_context(), kCuda, kMatrixProduct) ==
         kTensorFloat32;
}

}  // namespace aero::torch_ops

/// For tests: 1 where float32 may be rounded; a plain C symbol like aero_cpu_isa.
extern "C" __attribute__((visibility("default"))) int aero_allows_tf32() {
  return aero::torch_ops::allows_tf32() ? 1 : 0;
}
