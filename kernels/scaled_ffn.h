// The passes around the matrix products of the scaled feed-forward layer
// y = beta * x + (x W + b) / alpha; the products themselves come from torch. On a GPU those that
// carry the stream are one call of cublasLt each, which scales, adds and shifts.
//
// Backward: dx = beta dy + dy W^T / alpha (the same epilogue over dy W^T), and with G = x^T dy
// dW = G / alpha, db = sum(dy) / alpha, dbeta = trace(G),
// dalpha = -(<G, W> + b . sum(dy)) / alpha^2: no pass over activations for the scalars.
// Contract of the entry points: README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_queue.h"
#include "kernels/layout.h"

namespace aero::kernels {

/// y = beta * x + linear / alpha, elementwise.
struct ScaledFfnEpilogueParams {
  DataType data_type = DataType::kFloat32;  ///< of `linear`
  /// Of x and y: data_type, or kFloat32 for a stream that stays exact beside half products.
  DataType stream_type = DataType::kFloat32;
  int64_t elements = 0;
  const void* x = nullptr;       ///< [elements], stream_type
  const void* linear = nullptr;  ///< [elements], data_type
  void* y = nullptr;             ///< [elements], stream_type; `linear` itself if the types agree
  const void* alpha = nullptr;   ///< one float (double for kFloat64)
  const void* beta = nullptr;    ///< one float (double for kFloat64)
};

/// Letters: M rows, C width. Gradients of the parameters from G and dy.
struct ScaledFfnGradientParams {
  DataType data_type = DataType::kFloat32;
  int64_t rows = 0;
  int64_t width = 0;
  const void* dy = nullptr;       ///< [M, C] contiguous, data_type
  TensorView<const void> weight;  ///< [C, C], data_type
  const void* bias = nullptr;     ///< [C] contiguous, data_type
  const void* alpha = nullptr;    ///< one float (double for kFloat64)
  void* dweight = nullptr;        ///< [C, C] contiguous, data_type; holds G before, dW after
  void* dbias = nullptr;          ///< [C], data_type
  void* dalpha = nullptr;         ///< one float (double for kFloat64), written by finish
  void* dbeta = nullptr;          ///< one float (double for kFloat64), written by finish
};

/// y = beta * x + (x W + b) / alpha in one product, or beta * x + x W^T / alpha.
struct ScaledFfnProductParams {
  DataType data_type = DataType::kFloat32;    ///< of W and b, and of what is multiplied
  DataType stream_type = DataType::kFloat32;  ///< of x and y: data_type or kFloat32
  int64_t rows = 0;
  int64_t width = 0;
  const void* x = nullptr;            ///< [M, C] contiguous, stream_type
  const void* operand = nullptr;      ///< [M, C] contiguous, x as data_type
  TensorView<const void> weight;      ///< [C, C], data_type
  bool weight_is_transposed = false;  ///< x W^T
  const void* bias = nullptr;         ///< [C] contiguous, data_type, or null
  const void* alpha = nullptr;        ///< one float
  const void* beta = nullptr;         ///< one float
  void* y = nullptr;                  ///< [M, C] contiguous, stream_type
  bool allow_tf32 = false;            ///< as in attention_entropy.h
};

namespace cpu {

size_t workspace_bytes(const ScaledFfnEpilogueParams& params, int64_t threads);
size_t workspace_bytes(const ScaledFfnGradientParams& params, int64_t threads);

int64_t item_count(const ScaledFfnEpilogueParams& params);
int64_t item_count(const ScaledFfnGradientParams& params);

void run(const ScaledFfnEpilogueParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread);
void run(const ScaledFfnGradientParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread);

/// Adds up the results of all items in the workspace; call it once, after them.
void finish(const ScaledFfnGradientParams& params, const void* workspace);

}  // namespace cpu

namespace cuda {

/// Same contract as in attention_entropy.h, the scratch memory aligned to 256 bytes. An alpha of
/// zero gives infinities and NaN. The first product on a device makes cublasLt ready for it, which
/// must not happen while a CUDA graph is captured. launch of a product is false where cublasLt has
/// no algorithm for it: odd widths or addresses of half types, maybe.
size_t workspace_bytes(const ScaledFfnProductParams& params);
size_t workspace_bytes(const ScaledFfnGradientParams& params);
bool launch(const ScaledFfnProductParams& params, void* workspace, const Queue& queue);
void launch(const ScaledFfnGradientParams& params, void* workspace, const Queue& queue);

}  // namespace cuda
}  // namespace aero::kernels
