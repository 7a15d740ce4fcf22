// Penalty on attention entropies that leave a band around their head's threshold.
//
// deviation = E - threshold * E_max,  penalty = deviation^2 where |deviation| > margin * E_max.
//   kPositionSum: penalty of every (l, b, h, i); sum over b and i; mean over h and l.
//   kQueryMean:   E and E_max averaged over the counted rows i of (l, b, h) first; penalty of that;
//                 mean over l, h and those b that have a counted row.
// d/dE = 2 deviation where the penalty is active (over the number of rows for kQueryMean),
// d/dthreshold = -2 deviation E_max. Contract of the entry points: README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_queue.h"
#include "kernels/layout.h"

namespace aero::kernels {

enum class EntropyReduction : uint8_t { kPositionSum, kQueryMean };

/// Letters: L layers, B batch, H heads, T queries; any may be zero. Real is float, or double for
/// kFloat64; other data types are not supported.
struct EntropyRegularizationParams {
  DataType data_type = DataType::kFloat32;
  int64_t layers = 0;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t queries = 0;

  TensorView<const void> entropies;  ///< [L, B, H, T], Real, nats
  const void* thresholds = nullptr;  ///< [L, H] contiguous, Real

  /// E_max of [B, T], Real; a stride of 0 broadcasts.
  TensorView<const void> max_entropy;

  /// [B, T], true where the row counts; null: every row. A stride of 0 broadcasts.
  TensorView<const bool> row_mask;

  double margin = 0.1;  ///< share of E_max
  EntropyReduction reduction = EntropyReduction::kPositionSum;
};

struct EntropyRegularizationForwardParams : EntropyRegularizationParams {
  void* loss = nullptr;  ///< one Real, written by finish
};

struct EntropyRegularizationBackwardParams : EntropyRegularizationParams {
  const void* dloss = nullptr;  ///< one Real
  void* dentropies = nullptr;   ///< [L, B, H, T] contiguous, Real
  void* dthresholds = nullptr;  ///< [L, H] contiguous, Real
};

namespace cpu {

/// One item per layer and head.
size_t workspace_bytes(const EntropyRegularizationForwardParams& params, int64_t threads);
size_t workspace_bytes(const EntropyRegularizationBackwardParams& params, int64_t threads);

int64_t item_count(const EntropyRegularizationForwardParams& params);
int64_t item_count(const EntropyRegularizationBackwardParams& params);

void run(const EntropyRegularizationForwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread);
void run(const EntropyRegularizationBackwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread);

/// Adds up the results of all items in the workspace; call it once, after them.
void finish(const EntropyRegularizationForwardParams& params, const void* workspace);

}  // namespace cpu

namespace cuda {

/// Same contract as in attention_entropy.h; the backward direction needs no scratch memory. One
/// kernel does all layers.
size_t workspace_bytes(const EntropyRegularizationForwardParams& params);
void launch(const EntropyRegularizationForwardParams& params, void* workspace, const Queue& queue);
void launch(const EntropyRegularizationBackwardParams& params, const Queue& queue);

}  // namespace cuda
}  // namespace aero::kernels
