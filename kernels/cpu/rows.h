// Rows of tensors and of their copies.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/layout.h"

namespace aero::kernels::cpu {
namespace {

/// Rows of contiguous numbers, `stride` of them from row to row.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;

  AERO_INLINE T* row(int64_t i) const { return data + i * stride; }
  AERO_INLINE Matrix from(int64_t i, int64_t column = 0) const { return {row(i) + column, stride}; }
};

/// Rows of a head from row `first` on.
template <class Element, class T>
AERO_INLINE Matrix<Element> rows_at(const TensorView<T>& tensor, int64_t batch, int64_t head,
                                    int64_t first) {
  const Strides& s = tensor.strides;
  return {static_cast<Element*>(tensor.data) + (batch * s.batch + head * s.head + first * s.row),
          s.row};
}

}  // namespace
}  // namespace aero::kernels::cpu
