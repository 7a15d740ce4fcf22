#include "kernels/cuda/matrix_product.h"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace aero::kernels::cuda {
namespace {

using namespace cublas_lt;

/// Errors of a call, and its operator.
struct Check {
  const char* op;
  const Functions& lt;
  const MatrixProductParams& params;

  void operator()(Status status) const {
    if (status != 0)
      throw std::runtime_error(std::string(op) + ": cublasLt cannot multiply [" +
                               std::to_string(params.rows) + ", " + std::to_string(params.width) +
                               "] by [" + std::to_string(params.width) + ", " +
                               std::to_string(params.width) + "]: " + lt.GetStatusString(status));
  }
};

/// A description that cublasLt makes, and takes back.
class Description {
 public:
  explicit Description(Status (*destroy)(void*)) : destroy_(destroy) {}
  ~Description() {
    if (description_) destroy_(description_);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  void** target() { return &description_; }
  void* get() const { return description_; }

 private:
  Status (*destroy_)(void*);
  void* description_ = nullptr;
};

int type_of(kernels::DataType type) {
  switch (type) {
    case kernels::DataType::kBFloat16:
      return cublas_lt::kBFloat16;
    case kernels::DataType::kFloat16:
      return cublas_lt::kFloat16;
    default:
      return cublas_lt::kFloat32;
  }
}

/// The largest power of two up to 256 that an address and a row's bytes are multiples of.
uint32_t alignment_of(const void* data, int64_t row_bytes) {
  const auto both = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(row_bytes) | 256U;
  return static_cast<uint32_t>(both & (~both + 1));
}

}  // namespace

// cublasLt counts matrices column by column: rows of y are columns of y^T = W^T a^T, and the memory
// of W, read that way, is W^T.
bool multiply_matrices(const char* op, const CublasLt& library, const MatrixProductParams& p,
                       void* stream) {
  const Functions& lt = *library.functions;
  const Check check{op, lt, p};
  const int operand = type_of(p.data_type), result = type_of(p.stream_type);
  const auto width = static_cast<uint64_t>(p.width), rows = static_cast<uint64_t>(p.rows);

  Description weight(lt.MatrixLayoutDestroy), a(lt.MatrixLayoutDestroy), y(lt.MatrixLayoutDestroy);
  check(lt.MatrixLayoutCreate(weight.target(), operand, width, width, p.weight.strides.row));
  check(lt.MatrixLayoutCreate(a.target(), operand, width, rows, p.width));
  check(lt.MatrixLayoutCreate(y.target(), result, width, rows, p.width));

  Description product(lt.MatmulDescDestroy);
  const bool rounds = p.allow_tf32 && p.data_type == kernels::DataType::kFloat32;
  check(lt.MatmulDescCreate(product.target(), rounds ? kComputeTensorFloat32 : kComputeFloat32,
                            cublas_lt::kFloat32));
  const auto set = [&](ProductAttribute attribute, const auto& value) {
    check(lt.MatmulDescSetAttribute(product.get(), attribute, static_cast<const void*>(&value),
                                    sizeof(value)));
  };
  set(kPointerMode, int32_t{kOnDevice});
  set(kOperationA, int32_t{p.weight_is_transposed ? kTransposed : kAsItIs});
  set(kEpilogue, uint32_t{p.bias ? kAddBias : kNoEpilogue});
  if (p.bias) set(kBiasPointer, p.bias);

  Description preference(lt.MatmulPreferenceDestroy);
  check(lt.MatmulPreferenceCreate(preference.target()));
  const auto prefer = [&](PreferenceAttribute attribute, const auto& value) {
    check(lt.MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  const int64_t operand_bytes = element_bytes(p.data_type), bytes = element_bytes(p.stream_type);
  prefer(kMaxWorkspaceBytes, uint64_t{kProductWorkspaceBytes});
  prefer(kAlignmentA, alignment_of(p.weight.data, p.weight.strides.row * operand_bytes));
  prefer(kAlignmentB, alignment_of(p.a, p.width * operand_bytes));
  prefer(kAlignmentC, alignment_of(p.addend, p.width * bytes));
  prefer(kAlignmentD, alignment_of(p.y, p.width * bytes));

  Heuristic best{};
  int found = 0;
  constexpr Status kNotSupported = 15;  // CUBLAS_STATUS_NOT_SUPPORTED
  Status status = lt.MatmulAlgoGetHeuristic(library.handle, product.get(), weight.get(), a.get(),
                                            y.get(), y.get(), preference.get(), 1, &best, &found);
  if (status == 0) status = found == 0 ? kNotSupported : best.state;
  if (status == kNotSupported) return false;
  check(status);
  check(lt.Matmul(library.handle, product.get(), p.factor, p.weight.data, weight.get(), p.a,
                  a.get(), p.addend_factor, p.addend, y.get(), p.y, y.get(), &best.algorithm,
                  p.workspace, kProductWorkspaceBytes, stream));
  return true;
}

}  // namespace aero::kernels::cuda
