// Every kernel as a function in a table: one table per instruction set, filled by the file of its
// name (scalar.cpp, avx2.cpp, ...).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_entropy.h"
#include "kernels/cross_entropy.h"
#include "kernels/scaled_ffn.h"
#include "kernels/temperature_softmax.h"

namespace aero::kernels::cpu {

/// One direction for one data type. `scratch` is the calling thread's own.
template <class Params>
struct Kernel {
  int64_t (*scratch_bytes)(const Params& params);
  int64_t (*item_count)(const Params& params);
  void (*run)(const Params& params, void* scratch, int64_t first, int64_t last);
};

namespace {

template <class Pass>
constexpr Kernel<typename Pass::Params> kernel_of() noexcept {
  return {Pass::scratch_bytes, Pass::item_count, Pass::run};
}

}  // namespace

/// Both directions, indexed by DataType.
template <class Forward, class Backward>
struct BothDirections {
  Kernel<Forward> forward[4];
  Kernel<Backward> backward[4];

  const Kernel<Forward>& of(const Forward& params) const {
    return forward[static_cast<int>(params.data_type)];
  }
  const Kernel<Backward>& of(const Backward& params) const {
    return backward[static_cast<int>(params.data_type)];
  }
};

using AttentionEntropyKernels =
    BothDirections<AttentionEntropyForwardParams, AttentionEntropyBackwardParams>;
using TemperatureSoftmaxKernels =
    BothDirections<TemperatureSoftmaxForwardParams, TemperatureSoftmaxBackwardParams>;

/// The rows of one layer, batch entry and head. A row that does not count has entropy and E_max 0,
/// so that it deviates by 0.
template <class Real>
struct EntropyRows {
  const Real* entropies;     ///< [T] contiguous
  const Real* max_entropy;   ///< [T] contiguous, or one for all
  bool has_one_max_entropy;  ///< which of both
  int64_t count;             ///< T
  Real threshold;
  Real margin;
};

template <class Real>
struct EntropySums {
  Real entropy;
  Real max_entropy;
};

template <class Real>
struct EntropyRegularizationKernels {
  /// Sum of the squared deviations that leave the free band.
  Real (*penalty)(const EntropyRows<Real>& rows);
  /// Sums over the rows.
  EntropySums<Real> (*sums)(const EntropyRows<Real>& rows);
  /// dentropies[i] = factor * deviation_i where it leaves the band, else 0; returns the sum of
  /// deviation_i E_max_i over those rows.
  Real (*gradients)(const EntropyRows<Real>& rows, Real factor, Real* dentropies);
};

struct ScaledFfnKernels {
  /// y of the elements [first, last).
  void (*epilogue)(const ScaledFfnEpilogueParams& params, int64_t first, int64_t last);
  /// sums[c] = sum over the rows [first, last) of dy, [C] of float (double for kFloat64).
  void (*column_sums)(const ScaledFfnGradientParams& params, int64_t first, int64_t last,
                      void* sums);
  /// G becomes dW in the rows [first, last); products[i] = <G_i, W_i> and diagonal[i] = G_ii.
  void (*weight_rows)(const ScaledFfnGradientParams& params, int64_t first, int64_t last,
                      void* products, void* diagonal);
};

struct Kernels {
  AttentionEntropyKernels attention_entropy;
  TemperatureSoftmaxKernels temperature_softmax;
  Kernel<CrossEntropyParams> cross_entropy[4];  ///< indexed by DataType
  EntropyRegularizationKernels<float> entropy_regularization;
  EntropyRegularizationKernels<double> entropy_regularization_float64;
  ScaledFfnKernels scaled_ffn;
};

extern const Kernels kScalar, kAvx2, kAvx512, kNeon;
/// What bfloat16 changes: all else is null and runs as in the set before.
extern const Kernels kAvx512Bf16, kNeonBf16;
/// attention_entropy in bfloat16 alone, likewise: tile registers multiply nothing else.
extern const Kernels kAmx;

/// The kernels of the instruction set that `isa_name()` names, and its errors.
const Kernels& kernels_in_use();

/// Scratch of one thread, in whole cache lines so that threads share none.
template <class Params>
size_t scratch_bytes(const Kernel<Params>& kernel, const Params& params) {
  return (static_cast<size_t>(kernel.scratch_bytes(params)) + 63) / 64 * 64;
}

template <class Params>
void run_items(const Kernel<Params>& kernel, const Params& params, void* workspace, int64_t first,
               int64_t last, int64_t thread) {
  char* scratch =
      static_cast<char*>(workspace) + scratch_bytes(kernel, params) * static_cast<size_t>(thread);
  kernel.run(params, scratch, first, last);
}

}  // namespace aero::kernels::cpu
