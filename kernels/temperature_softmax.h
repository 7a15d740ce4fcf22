// Softmax over the last dimension of given scores, with a temperature per row and the entropy of
// every row.
//
// s_ij = scores_ij / t_i,  P = softmax_j(s),  entropy_i = -sum_j P_ij ln P_ij (nats),
// logsumexp_i = ln sum_j exp(s_ij). A row that sees no key gives probabilities 0, entropy 0,
// logsumexp -inf and zero gradients, whatever comes back to it; so does a key that is not seen.
// Equations: online_softmax.h. Contract of the entry points: README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_queue.h"
#include "kernels/layout.h"

namespace aero::kernels {

/// The inputs of both directions. Letters: B batch, H heads, T queries, S keys; any may be zero.
struct TemperatureSoftmaxParams {
  DataType data_type = DataType::kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t queries = 0;
  int64_t keys = 0;

  TensorView<const void> scores;  ///< [B, H, T, S]

  /// [B, H, T], float (double for kFloat64), nonzero, any sign; null means 1.
  TensorView<const void> temperature;

  bool is_causal = false;  ///< query i sees keys j <= i + S - T
  /// [B, H, T, S], true where the query sees the key; null means everywhere. Combined with
  /// is_causal by and.
  TensorView<const bool> mask;
};

struct TemperatureSoftmaxForwardParams : TemperatureSoftmaxParams {
  TensorView<void> probabilities;  ///< [B, H, T, S], data_type
  void* entropy = nullptr;         ///< [B, H, T] contiguous, float (double for kFloat64), nats
  void* logsumexp = nullptr;       ///< [B, H, T] contiguous, float (double for kFloat64)
  void* statistics = nullptr;      ///< [B, H, 3, T] contiguous, type of entropy; null: not kept
};

/// Every incoming gradient may be null (then it is zero) and every outgoing gradient may be null
/// (then it is not written). The probabilities are recomputed from the scores: rounded ones would
/// cost the entropy its digits.
struct TemperatureSoftmaxBackwardParams : TemperatureSoftmaxParams {
  const void* statistics = nullptr;  ///< [B, H, 3, T] contiguous, from the forward pass

  TensorView<const void> dprobabilities;  ///< [B, H, T, S], data_type
  const void* dentropy = nullptr;         ///< [B, H, T] contiguous, float (double for kFloat64)
  const void* dlogsumexp = nullptr;       ///< [B, H, T] contiguous, float (double for kFloat64)

  TensorView<void> dscores;      ///< [B, H, T, S], data_type
  void* dtemperature = nullptr;  ///< [B, H, T] contiguous, type of entropy, one value per row
};

namespace cpu {

/// Same contract as in attention_entropy.h.
size_t workspace_bytes(const TemperatureSoftmaxForwardParams& params, int64_t threads);
size_t workspace_bytes(const TemperatureSoftmaxBackwardParams& params, int64_t threads);

int64_t item_count(const TemperatureSoftmaxForwardParams& params);
int64_t item_count(const TemperatureSoftmaxBackwardParams& params);

void run(const TemperatureSoftmaxForwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread);
void run(const TemperatureSoftmaxBackwardParams& params, void* workspace, int64_t first,
         int64_t last, int64_t thread);

}  // namespace cpu

namespace cuda {

/// Same contract as in attention_entropy.h; no scratch memory.
void launch(const TemperatureSoftmaxForwardParams& params, const Queue& queue);
void launch(const TemperatureSoftmaxBackwardParams& params, const Queue& queue);

}  // namespace cuda
}  // namespace aero::kernels
