// A product of matrices that is scaled, added to another and shifted in one call of cublasLt.
#pragma once

#include "kernels/cuda/cublas_lt.h"
#include "kernels/layout.h"

namespace aero::kernels::cuda {

/// y = factor * (a W) + addend_factor * addend + bias, rows of C contiguous numbers; or a W^T.
struct MatrixProductParams {
  DataType data_type = DataType::kFloat32;    ///< of a and W
  DataType stream_type = DataType::kFloat32;  ///< of addend, bias and y: data_type or kFloat32
  int64_t rows = 0;                           ///< M
  int64_t width = 0;                          ///< C
  const void* a = nullptr;                    ///< [M, C]
  TensorView<const void> weight;              ///< [C, C], rows at least C apart
  bool weight_is_transposed = false;          ///< a W^T
  const void* addend = nullptr;               ///< [M, C]
  const void* bias = nullptr;                 ///< [C], or null
  const void* factor = nullptr;               ///< one float on the device
  const void* addend_factor = nullptr;        ///< one float on the device
  void* y = nullptr;                          ///< [M, C]
  void* workspace = nullptr;                  ///< kProductWorkspaceBytes, aligned to 256
  bool allow_tf32 = false;                    ///< of kFloat32: operands may be rounded to TF32
};

/// Scratch memory of a product, as NVIDIA advises for Hopper.
inline constexpr size_t kProductWorkspaceBytes = size_t{32} << 20U;

/// Puts the product in the stream; false where cublasLt has no algorithm for it, and y is as it
/// was. M and C are at least 1. Throws std::runtime_error, naming the operator, where anything else
/// fails.
bool multiply_matrices(const char* op, const CublasLt& library, const MatrixProductParams& params,
                       void* stream);

}  // namespace aero::kernels::cuda
