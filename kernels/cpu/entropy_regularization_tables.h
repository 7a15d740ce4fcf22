// The tables of entropy_regularization kernels, one per instruction set.
#pragma once

#include <cstdint>

namespace aero::kernels::cpu {

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

struct EntropyRegularizationTable {
  EntropyRegularizationKernels<float> single;
  EntropyRegularizationKernels<double> wide;
};

extern const EntropyRegularizationTable kEntropyRegularizationScalar;
extern const EntropyRegularizationTable kEntropyRegularizationAvx2;
extern const EntropyRegularizationTable kEntropyRegularizationAvx512;

}  // namespace aero::kernels::cpu
