// Attention with a temperature per row and the entropy of every row, fused: the [T, S] scores are
// never stored.
//
// Row i of head h:  s_ij = (cap(scale q_i . k_j) + bias_ij - slope_h |i + S - T - j|) / t_i with
//                   cap(x) = softcap tanh(x / softcap),  P = softmax_j(s),  out = (P M) v,
//                   entropy_i = -sum_j P_ij ln P_ij (nats),  logsumexp_i = ln sum_j exp(s_ij).
// Cap, bias, slopes and M, dropout's mask of 0 and 1 / (1 - p), are there where asked for. A sink
// is one more key, of score sink_h / t_i and value 0: P, entropy and logsumexp take it in, but not
// max_logits_i = max_j s_ij and largest_key_i, the first key that has it. A row that sees neither
// key nor sink gives out 0, entropy 0, logsumexp and max_logits -inf, largest_key -1 and zero
// gradients, whatever comes back to it: its part in sums over rows is 0 where that is inf or NaN.
// Nor does a row whose sink alone has weight pass anything on to q, k, v and bias.
// Equations and their derivation: online_softmax.h. Contract of the entry points: README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_queue.h"
#include "kernels/layout.h"

namespace aero::kernels {

/// What the products of queries and keys pass through on their way to scores.
struct ScoreTransform {
  double scale = 1.0;
  /// [B, H, T], float (double for kFloat64), nonzero, any sign; null means 1.
  TensorView<const void> temperature;
  double softcap = 0;                   ///< 0: none
  TensorView<const void> alibi_slopes;  ///< [B, H], type of temperature; null: none
  /// [B, H, T, S], data_type or the type of temperature; null: none.
  TensorView<const void> bias;
  bool has_fine_bias = false;    ///< the bias has the type of temperature
  TensorView<const void> sinks;  ///< [B, H], type of temperature; null: none

  /// Whether there is more to a score than a factor.
  [[gnu::always_inline]] constexpr bool transforms() const {
    return softcap != 0 || alibi_slopes || bias;
  }
  /// What a product is multiplied by before that; the cap is given a share of itself.
  [[gnu::always_inline]] constexpr double product_scale() const {
    return softcap != 0 ? scale / softcap : scale;
  }
};

/// Which keys a query sees: those that every rule shows.
struct KeyVisibility {
  bool is_causal = false;     ///< query i sees keys j <= i + S - T
  int64_t window_left = -1;   ///< query i sees keys j >= i + S - T - window_left; -1: all
  int64_t window_right = -1;  ///< query i sees keys j <= i + S - T + window_right; -1: all
  /// [B, H, T, S], true where the query sees the key; null means everywhere.
  TensorView<const bool> mask;

  [[gnu::always_inline]] constexpr bool ends() const { return is_causal || window_right >= 0; }
  /// Where it ends, query i sees keys j <= i + S - T + reach().
  [[gnu::always_inline]] constexpr int64_t reach() const { return is_causal ? 0 : window_right; }
};

/// Which weights are dropped: P_ij where the hash of (seed_b, h, i, j) is below the threshold. The
/// same on every machine and in both directions; entropy and logsumexp are those of the whole row.
struct Dropout {
  const int64_t* seeds = nullptr;  ///< [B]; null: nothing is dropped
  double probability = 0;
};

/// The inputs of both directions. Letters: B batch, H heads, G key heads (H a multiple of G), T
/// queries, S keys, D width of queries and keys, Dv of values (at most kMaxHeadDim). B, H, T and S
/// may be zero.
struct AttentionEntropyParams : ScoreTransform, KeyVisibility {
  DataType data_type = DataType::kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t head_dim = 0;   ///< D
  int64_t value_dim = 0;  ///< Dv

  TensorView<const void> q;  ///< [B, H, T, D]
  TensorView<const void> k;  ///< [B, G, S, D]
  TensorView<const void> v;  ///< [B, G, S, Dv]

  Dropout dropout;

  /// On a GPU products of kFloat32 may round their operands to TF32, 10 bits behind the point.
  bool allow_tf32 = false;
};

struct AttentionEntropyForwardParams : AttentionEntropyParams {
  TensorView<void> out;        ///< [B, H, T, Dv], data_type
  void* entropy = nullptr;     ///< [B, H, T] contiguous, float (double for kFloat64), nats
  void* logsumexp = nullptr;   ///< [B, H, T] contiguous, float (double for kFloat64)
  void* statistics = nullptr;  ///< [B, H, 3, T] contiguous, type of entropy; null: not kept
  /// [B, H, T] contiguous, type of entropy. With largest_key or not at all; S below 2^31 then.
  void* max_logits = nullptr;
  int64_t* largest_key = nullptr;  ///< [B, H, T] contiguous; -1 where max_logits is -inf or NaN

  /// In how many parts the keys of each row are read, from cpu::key_parts; with more than one,
  /// `partials` takes the parts that cpu::finish puts together.
  int64_t key_parts = 1;
  /// [B * H * T, key_parts, kPartialStatistics + Dv], type of entropy, not initialised.
  void* partials = nullptr;
};

/// Every incoming gradient may be null (then it is zero) and every outgoing gradient may be null
/// (then it is not written).
struct AttentionEntropyBackwardParams : AttentionEntropyParams {
  TensorView<const void> out;        ///< [B, H, T, Dv] of the forward pass; read only with dout
  const void* statistics = nullptr;  ///< [B, H, 3, T] contiguous, from the forward pass

  TensorView<const void> dout;           ///< [B, H, T, Dv], data_type
  const void* dentropy = nullptr;        ///< [B, H, T] contiguous, float (double for kFloat64)
  const void* dlogsumexp = nullptr;      ///< [B, H, T] contiguous, float (double for kFloat64)
  const void* dmax_logits = nullptr;     ///< [B, H, T] contiguous, float (double for kFloat64)
  const int64_t* largest_key = nullptr;  ///< [B, H, T] of the forward pass; read with dmax_logits

  TensorView<void> dq;           ///< [B, H, T, D], data_type
  TensorView<void> dk;           ///< [B, G, S, D], data_type
  TensorView<void> dv;           ///< [B, G, S, Dv], data_type
  void* dtemperature = nullptr;  ///< [B, H, T] contiguous, type of entropy, one value per row
  void* dsinks = nullptr;        ///< [B, H, T] contiguous, type of entropy, one value per row
  void* dslopes = nullptr;       ///< [B, H, T] contiguous, type of entropy, one value per row
  /// [ceil(B / bias_entries), H, T, S], type of entropy; 0 where no query sees the key.
  TensorView<void> dbias;
  /// Batch entries whose gradients are summed into one of dbias, in order. With more than one, an
  /// item is a key head in all of them.
  int64_t bias_entries = 1;

  /// Threads that will share the items. With fewer heads than threads the work is cut finer, at the
  /// price of computing scores and dP twice. Bitwise the same run to run for one value of it.
  int64_t threads = 1;

  /// Blocks of a GPU that do whole heads, from cuda::head_blocks; 0: the work is split finer.
  int64_t head_blocks = 0;
};

inline constexpr int64_t kMaxHeadDim = 512;
/// Numbers of a part of a row's keys before its outputs.
inline constexpr int64_t kPartialStatistics = 5;

/// Up to this many queries, as in generation, are taken one by one (cpu/attention_decode_row.h).
inline constexpr int64_t kFewQueries = 4;

namespace cpu {

/// Scratch that the caller allocates once for a whole call, 64-byte aligned, not initialised.
/// Throws std::invalid_argument where AERO_CPU_ISA is bad (dispatch.h), so call it before the
/// parallel loop.
size_t workspace_bytes(const AttentionEntropyForwardParams& params, int64_t threads);
size_t workspace_bytes(const AttentionEntropyBackwardParams& params, int64_t threads);

/// Into how many parts to cut the keys so that `threads` threads share a call of few rows evenly;
/// the result is bitwise the same run to run for one number of parts. 1 for all other calls.
int64_t key_parts(const AttentionEntropyForwardParams& params, int64_t threads);

/// Size of `partials`; 0 with one part.
size_t partial_bytes(const AttentionEntropyForwardParams& params);

/// Independent pieces of work, to be shared out in contiguous ranges.
int64_t item_count(const AttentionEntropyForwardParams& params);
int64_t item_count(const AttentionEntropyBackwardParams& params);

/// Does items [first, last). Concurrent calls carry distinct `thread` in [0, threads) and disjoint
/// ranges; `workspace` is the one sized by workspace_bytes.
void run(const AttentionEntropyForwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread);
void run(const AttentionEntropyBackwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread);

/// Puts the parts of each row together, in order; call it once, after all items.
void finish(const AttentionEntropyForwardParams& params);

}  // namespace cpu

namespace cuda {

/// How many blocks of the queue's device are best given whole heads, or 0. By size, unless the
/// environment variable AERO_CUDA_BACKWARD says heads (wherever there is a kernel for it) or split;
/// both are bitwise the same run to run. Throws std::invalid_argument where it says anything else,
/// and std::runtime_error for a device that cannot be used.
int64_t head_blocks(const AttentionEntropyBackwardParams& params, const Queue& queue);

/// Scratch on the device that lives until the work is done, 16-byte aligned, not initialised.
size_t workspace_bytes(const AttentionEntropyBackwardParams& params);

/// Puts the whole call in the queue and returns; all pointers are the device's. float64 is not
/// supported; a temperature of zero gives NaN in its row. `threads` is not looked at. Throws
/// std::invalid_argument for params that no kernel takes and std::runtime_error for a device or a
/// driver that cannot run them.
void launch(const AttentionEntropyForwardParams& params, const Queue& queue);
void launch(const AttentionEntropyBackwardParams& params, void* workspace, const Queue& queue);

}  // namespace cuda
}  // namespace aero::kernels
