// Cross entropy of rows of logits, and its gradient, which may take the logits' place. On the CPU
// alone.
//
// loss_i = ln sum_j exp(logits_ij) - logits_i,target;  dlogits_ij = factor_i (P_ij - [j = target]).
// A row whose target is negative does not count: its loss and its gradient are 0, whatever its
// logits are. Contract of the entry points: README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace aero::kernels {

/// Letters: N rows, V classes.
struct CrossEntropyParams {
  DataType data_type = DataType::kFloat32;
  int64_t rows = 0;
  int64_t classes = 0;
  TensorView<const void> logits;     ///< [N, V], data_type
  const int64_t* targets = nullptr;  ///< [N], below V
  void* losses = nullptr;            ///< [N], float (double for kFloat64), nats

  const void* factors = nullptr;  ///< [N], type of losses; null: no gradient
  TensorView<void> dlogits;       ///< [N, V], data_type; the logits themselves, or apart from them
};

namespace cpu {

/// Same contract as in attention_entropy.h.
size_t workspace_bytes(const CrossEntropyParams& params, int64_t threads);
int64_t item_count(const CrossEntropyParams& params);
void run(const CrossEntropyParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread);

}  // namespace cpu
}  // namespace aero::kernels
