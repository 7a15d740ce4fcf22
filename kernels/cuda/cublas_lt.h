// The part of cublasLt that we use, found in the library that torch has loaded.
//
// Its C interface is declared here: the toolkit's compiler comes without the header, and one binary
// serves machines with cublasLt 12, 13 and none. Names and numbers are those of cublasLt.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aero::kernels::cuda {

namespace cublas_lt {

using Handle = void*;
using Status = int;  ///< 0: success

enum NumberType : int { kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14 };  // CUDA_R_...
enum ComputeType : int {                                               // CUBLAS_COMPUTE_...
  kComputeFloat32 = 68,                                                // 32F
  kComputeTensorFloat32 = 77,                                          // 32F_FAST_TF32
};
enum Operation : int { kAsItIs = 0, kTransposed = 1 };       // CUBLAS_OP_...
enum PointerMode : int { kOnDevice = 1 };                    // CUBLASLT_POINTER_MODE_...
enum Epilogue : uint32_t { kNoEpilogue = 1, kAddBias = 4 };  // CUBLASLT_EPILOGUE_...
enum ProductAttribute : int {                                // CUBLASLT_MATMUL_DESC_...
  kPointerMode = 2,
  kOperationA = 3,
  kOperationB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
};
enum PreferenceAttribute : int {  // CUBLASLT_MATMUL_PREF_...
  kMaxWorkspaceBytes = 1,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
using Layout = void*;
using Product = void*;
using Preference = void*;

/// Its functions, by their names after "cublasLt".
struct Functions {
  Status (*Create)(Handle*);
  const char* (*GetStatusString)(Status);
  Status (*MatrixLayoutCreate)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  Status (*MatrixLayoutDestroy)(Layout);
  Status (*MatmulDescCreate)(Product*, int compute_type, int scale_type);
  Status (*MatmulDescDestroy)(Product);
  Status (*MatmulDescSetAttribute)(Product, int attribute, const void*, size_t bytes);
  Status (*MatmulPreferenceCreate)(Preference*);
  Status (*MatmulPreferenceDestroy)(Preference);
  Status (*MatmulPreferenceSetAttribute)(Preference, int attribute, const void*, size_t bytes);
  Status (*MatmulAlgoGetHeuristic)(Handle, Product, Layout a, Layout b, Layout c, Layout d,
                                   Preference, int wanted, Heuristic*, int* found);
  Status (*Matmul)(Handle, Product, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                   void* workspace, size_t workspace_bytes, void* stream);
};

}  // namespace cublas_lt

/// cublasLt on one device.
struct CublasLt {
  const cublas_lt::Functions* functions;
  cublas_lt::Handle handle;
};

/// The functions of the cublasLt in this process; null where there is none.
const cublas_lt::Functions* loaded_cublas_lt();

/// cublasLt for the current device, of number `device`. The first call for a device creates its
/// handle, which stays. Throws std::runtime_error, naming the operator, where there is none.
CublasLt cublas_lt_of(const char* op, int device);

}  // namespace aero::kernels::cuda
