// A cublasLt of our own that multiplies on the host, by what cublasLt's manual says of each call:
// matrices are counted column by column, d = alpha op(a) op(b) + beta c + bias of each row of d.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/matrix_product.h"
#include "tests/cpp/kernels/cuda/emulated_lane.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::cuda::testing {

namespace fake_cublas_lt {

using namespace cublas_lt;

/// What the calls left behind.
struct State {
  int live = 0;                ///< descriptions that were made and not taken back
  bool finds_nothing = false;  ///< no algorithm fits
  Status status = 0;           ///< of the search for one
  int64_t products = 0;
};
inline State state;

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error("cublasLt was called wrongly: " + what);
}

struct Matrix {
  int type;
  uint64_t rows, columns;
  int64_t stride;

  static const Matrix& of(Layout layout) { return *static_cast<Matrix*>(layout); }
  kernels::DataType data_type() const {
    return type == cublas_lt::kBFloat16  ? kernels::DataType::kBFloat16
           : type == cublas_lt::kFloat16 ? kernels::DataType::kFloat16
                                         : kernels::DataType::kFloat32;
  }
  int64_t row_bytes() const { return stride * element_bytes(data_type()); }
  size_t offset(uint64_t row, uint64_t column) const {
    return (column * static_cast<uint64_t>(stride) + row) *
           static_cast<uint64_t>(element_bytes(data_type()));
  }
  double get(const void* data, uint64_t row, uint64_t column) const {
    return kernels::testing::decode(data_type(),
                                    static_cast<const unsigned char*>(data) + offset(row, column));
  }
};

struct Description {
  int compute_type, scale_type;
  int32_t pointer_mode = 0, operation_a = 0, operation_b = 0;
  uint32_t epilogue = kNoEpilogue;
  const void* bias = nullptr;
};

struct Wishes {
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};
inline Wishes last_wishes;

template <class T>
Status set(T& target, const void* value, size_t bytes) {
  require(bytes == sizeof(T), "an attribute has another size");
  std::memcpy(&target, value, bytes);
  return 0;
}

inline Status set_attribute(Product product, int attribute, const void* value, size_t bytes) {
  auto& d = *static_cast<Description*>(product);
  switch (attribute) {
    case kPointerMode:
      return set(d.pointer_mode, value, bytes);
    case kOperationA:
      return set(d.operation_a, value, bytes);
    case kOperationB:
      return set(d.operation_b, value, bytes);
    case kEpilogue:
      return set(d.epilogue, value, bytes);
    case kBiasPointer:
      return set(d.bias, value, bytes);
    default:
      return 7;  // CUBLAS_STATUS_INVALID_VALUE
  }
}

inline Status set_preference(Preference preference, int attribute, const void* value,
                             size_t bytes) {
  auto& wishes = *static_cast<Wishes*>(preference);
  if (attribute == kMaxWorkspaceBytes) return set(wishes.workspace_bytes, value, bytes);
  if (attribute < kAlignmentA || attribute > kAlignmentD) return 7;
  return set(wishes.alignment[attribute - kAlignmentA], value, bytes);
}

inline Status choose(Handle, Product, Layout, Layout, Layout, Layout, Preference preference, int,
                     Heuristic* best, int* found) {
  last_wishes = *static_cast<Wishes*>(preference);
  *found = state.finds_nothing ? 0 : 1;
  *best = {};
  best->algorithm.data[3] = 42;
  return state.status;
}

/// A product may read in pieces as large as the alignment it was promised.
inline void require_alignment(const char* name, const void* data, const Matrix& matrix, int n) {
  const uint32_t promised = last_wishes.alignment[n];
  require(promised > 0 && (promised & (promised - 1)) == 0, "an alignment is no power of two");
  require(reinterpret_cast<uintptr_t>(data) % promised == 0 && matrix.row_bytes() % promised == 0,
          std::string(name) + " is not aligned as promised");
}

inline Status multiply(Handle handle, Product product, const void* alpha, const void* a,
                       Layout a_layout, const void* b, Layout b_layout, const void* beta,
                       const void* c, Layout c_layout, void* d, Layout d_layout,
                       const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void*) {
  const auto& what = *static_cast<const Description*>(product);
  const Matrix &left = Matrix::of(a_layout), &right = Matrix::of(b_layout),
               &added = Matrix::of(c_layout), &result = Matrix::of(d_layout);
  require(handle == &state, "another handle");
  require(algorithm->data[3] == 42, "another algorithm");
  const bool rounds = what.compute_type == kComputeTensorFloat32;
  require(
      (rounds || what.compute_type == kComputeFloat32) && what.scale_type == cublas_lt::kFloat32,
      "scales must be float32");
  require(!rounds || left.type == cublas_lt::kFloat32, "only float32 is rounded to TF32");
  const auto seen = [&](double x) {
    return rounds ? __builtin_bit_cast(float, EmulatedLane::round_to_tf32(static_cast<float>(x)))
                  : x;
  };
  require(what.pointer_mode == kOnDevice, "scales must be on the device");
  require(workspace != nullptr && workspace_bytes >= last_wishes.workspace_bytes, "no workspace");
  const bool turned_a = what.operation_a == kTransposed, turned_b = what.operation_b == kTransposed;
  const uint64_t depth = turned_a ? left.rows : left.columns;
  require((turned_a ? left.columns : left.rows) == result.rows &&
              (turned_b ? right.rows : right.columns) == result.columns &&
              (turned_b ? right.columns : right.rows) == depth && added.rows == result.rows &&
              added.columns == result.columns && added.type == result.type,
          "matrices do not fit");
  require_alignment("a", a, left, 0);
  require_alignment("b", b, right, 1);
  require_alignment("c", c, added, 2);
  require_alignment("d", d, result, 3);
  for (const Matrix* matrix : {&left, &right, &added, &result})
    require(matrix->stride >= static_cast<int64_t>(matrix->rows), "rows overlap");
  for (uint64_t j = 0; j < result.columns; ++j)
    for (uint64_t i = 0; i < result.rows; ++i) {
      double sum = 0;
      for (uint64_t k = 0; k < depth; ++k)
        sum += seen(turned_a ? left.get(a, k, i) : left.get(a, i, k)) *
               seen(turned_b ? right.get(b, j, k) : right.get(b, k, j));
      sum = *static_cast<const float*>(alpha) * sum +
            *static_cast<const float*>(beta) * added.get(c, i, j);
      if (what.epilogue == kAddBias) sum += Matrix{result.type, 0, 0, 0}.get(what.bias, i, 0);
      kernels::testing::encode(result.data_type(), sum,
                               static_cast<unsigned char*>(d) + result.offset(i, j));
    }
  ++state.products;
  return 0;
}

template <class T>
Status destroy(void* object) {
  delete static_cast<T*>(object);
  --state.live;
  return 0;
}
template <class T>
Status keep(void** target, T object) {
  *target = new T(object);
  ++state.live;
  return 0;
}

inline const Functions functions = {
    .Create =
        [](Handle* handle) {
          *handle = &state;
          return 0;
        },
    .GetStatusString =
        [](Status status) {
          return status == 15 ? "the requested functionality is not supported" : "other";
        },
    .MatrixLayoutCreate =
        [](Layout* layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
          return keep(layout, Matrix{type, rows, columns, stride});
        },
    .MatrixLayoutDestroy = destroy<Matrix>,
    .MatmulDescCreate =
        [](Product* product, int compute_type, int scale_type) {
          return keep(product, Description{.compute_type = compute_type, .scale_type = scale_type});
        },
    .MatmulDescDestroy = destroy<Description>,
    .MatmulDescSetAttribute = set_attribute,
    .MatmulPreferenceCreate = [](Preference* preference) { return keep(preference, Wishes{}); },
    .MatmulPreferenceDestroy = destroy<Wishes>,
    .MatmulPreferenceSetAttribute = set_preference,
    .MatmulAlgoGetHeuristic = choose,
    .Matmul = multiply,
};

}  // namespace fake_cublas_lt

inline CublasLt fake_cublas_lt_library() {
  return {&fake_cublas_lt::functions, &fake_cublas_lt::state};
}

}  // namespace aero::kernels::cuda::testing
