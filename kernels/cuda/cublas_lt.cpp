#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace aero::kernels::cuda {
namespace {

using cublas_lt::Functions;

template <class Function>
void find(void* library, const char* name, Function& function, bool& complete) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  complete = complete && function != nullptr;
}

/// Only a library that is loaded already: the version that torch was built for.
void* opened_library() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  return nullptr;
}

const Functions* find_functions() {
  static Functions all;
  void* library = opened_library();
  bool complete = library != nullptr;
  if (!complete) return nullptr;
#define AERO_FIND(name) find(library, "cublasLt" #name, all.name, complete)
  AERO_FIND(Create);
  AERO_FIND(GetStatusString);
  AERO_FIND(MatrixLayoutCreate);
  AERO_FIND(MatrixLayoutDestroy);
  AERO_FIND(MatmulDescCreate);
  AERO_FIND(MatmulDescDestroy);
  AERO_FIND(MatmulDescSetAttribute);
  AERO_FIND(MatmulPreferenceCreate);
  AERO_FIND(MatmulPreferenceDestroy);
  AERO_FIND(MatmulPreferenceSetAttribute);
  AERO_FIND(MatmulAlgoGetHeuristic);
  AERO_FIND(Matmul);
#undef AERO_FIND
  return complete ? &all : nullptr;
}

}  // namespace

const Functions* loaded_cublas_lt() {
  static const Functions* const functions = find_functions();
  return functions;
}

CublasLt cublas_lt_of(const char* op, int device) {
  const Functions* functions = loaded_cublas_lt();
  if (!functions)
    throw std::runtime_error(std::string(op) +
                             ": needs cublasLt 12 or 13, and PyTorch has loaded neither");
  static std::mutex mutex;
  static std::map<int, cublas_lt::Handle> handles;
  const std::lock_guard lock(mutex);
  cublas_lt::Handle& handle = handles[device];
  if (!handle) {
    const cublas_lt::Status status = functions->Create(&handle);
    if (status != 0) {
      handle = nullptr;
      throw std::runtime_error(std::string(op) + ": cublasLt could not be started on device " +
                               std::to_string(device) + ": " + functions->GetStatusString(status));
    }
  }
  return {functions, handle};
}

}  // namespace aero::kernels::cuda
