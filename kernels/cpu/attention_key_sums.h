// The sums of a block of keys, dK or dV: made in their tensor where that can hold them.
#pragma once

#include "kernels/cpu/operands.h"

namespace aero::kernels::cpu {
namespace {

/// Whether rows of `columns` are used in place: where they are of type Real, whole vectors, and
/// follow each other. Far apart, as in [B, T, H, D], they fall into few sets of the cache.
template <class Element, class Real, class Tensor>
bool is_in_place(const Tensor& tensor, int64_t columns) {
  return sizeof(Element) == sizeof(Real) && columns % kLanes<Real> == 0 &&
         tensor.strides.row == columns;
}

/// Sums [count, columns] of keys, nothing at first.
template <class Element, class Real>
class KeySums {
 public:
  /// `rows`: of the block in `tensor`, if there is one. `scratch`: rows of whole vectors.
  KeySums(const TensorView<void>& tensor, Matrix<Element> rows, int64_t count, int64_t columns,
          Real* scratch)
      : to_(rows),
        sums_{scratch, round_up(columns, kLanes<Real>)},
        count_(count),
        columns_(columns),
        moves_(tensor && !is_in_place<Element, Real>(tensor, columns)) {
    if constexpr (sizeof(Element) == sizeof(Real))
      if (tensor && !moves_) sums_ = rows;
  }

  AERO_INLINE Matrix<Real> from(int64_t key) const { return sums_.from(key); }

  /// Zeros for the first `end` keys.
  void clear(int64_t end) const {
    for (int64_t j = 0; j < smaller(end, count_); ++j)
      for (int64_t d = 0; d < columns_; ++d) sums_.row(j)[d] = 0;
  }
  /// Sums that were not made in place go to their tensor.
  void finish() const {
    if (!moves_) return;
    for (int64_t j = 0; j < count_; ++j)
      for (int64_t d = 0; d < columns_; d += kLanes<Real>)
        store_part<Real>(to_.row(j) + d, load(sums_.row(j) + d), columns_ - d);
  }

 private:
  Matrix<Element> to_;
  Matrix<Real> sums_;
  int64_t count_, columns_;
  bool moves_;
};

}  // namespace
}  // namespace aero::kernels::cpu
