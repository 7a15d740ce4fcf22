// Entropy penalty, one kernel for all layers in each direction: forward a warp per layer, batch
// entry and head, and the block that ends last adds up what they found; backward a block per layer
// and head. Sums over a row, a block and all partial sums have a fixed order.
#pragma once

#include "kernels/cuda/row_team.h"
#include "kernels/entropy_regularization.h"

namespace aero::kernels::cuda {

/// The deviation from the free band.
struct EntropyExcess {
  float threshold, margin;

  /// Deviation from the threshold where it leaves the free band, else 0. NaN stays.
  AERO_DEVICE float of(float entropy, float largest) const {
    const float deviation = entropy - threshold * largest;
    return __builtin_fabsf(deviation) <= margin * largest ? 0.0f : deviation;
  }
};

/// The rows of one layer, batch entry and head.
struct EntropyRows {
  const float* entropies;
  const float* largest;
  const bool* mask;  ///< null: every row counts
  int64_t stride, largest_stride, mask_stride;
  int count;

  AERO_DEVICE EntropyRows(const EntropyRegularizationParams& p, int64_t layer, int64_t batch,
                          int64_t head)
      : entropies(static_cast<const float*>(p.entropies.data) + layer * p.entropies.strides.layer +
                  batch * p.entropies.strides.batch + head * p.entropies.strides.head),
        largest(static_cast<const float*>(p.max_entropy.data) +
                batch * p.max_entropy.strides.batch),
        mask(p.row_mask ? p.row_mask.data + batch * p.row_mask.strides.batch : nullptr),
        stride(p.entropies.strides.row),
        largest_stride(p.max_entropy.strides.row),
        mask_stride(p.row_mask.strides.row),
        count(static_cast<int>(p.queries)) {}

  /// Calls use(i, counts, entropy, largest entropy) for every 32nd row; zeros where a row does not
  /// count. What several rows need is loaded before any of it is used.
  template <class Lane, class Use>
  AERO_DEVICE void visit(const Lane& lane, Use use) const {
    constexpr int kAtOnce = 4;
    for (int first = lane.thread % kWarp; first < count; first += kAtOnce * kWarp) {
      bool counted[kAtOnce];
      float entropy[kAtOnce], most[kAtOnce];
      AERO_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const int64_t i = first + n * kWarp;
        counted[n] = i < count && (!mask || mask[i * mask_stride]);
        entropy[n] = counted[n] ? entropies[i * stride] : 0.0f;
        most[n] = counted[n] ? largest[i * largest_stride] : 0.0f;
      }
      AERO_UNROLL
      for (int n = 0; n < kAtOnce; ++n)
        if (first + n * kWarp < count) use(first + n * kWarp, counted[n], entropy[n], most[n]);
    }
  }
};

template <class Lane>
AERO_DEVICE float sum_over_warp(Lane& lane, float value) {
  return RowTeam<1, 0>::sum(lane, 0, value);
}

/// Averages over the counted rows, and their consequences; the same in all lanes of a warp.
struct EntropyMean {
  float count = 0, largest = 0, excess = 0;

  template <class Lane>
  AERO_DEVICE EntropyMean(Lane& lane, const EntropyRows& rows, const EntropyExcess& excess_of) {
    float entropy = 0;
    rows.visit(lane, [&](int, bool counted, float row_entropy, float row_largest) {
      count += counted ? 1.0f : 0.0f;
      entropy += row_entropy;
      largest += row_largest;
    });
    count = sum_over_warp(lane, count);
    entropy = sum_over_warp(lane, entropy);
    largest = sum_over_warp(lane, largest);
    if (count == 0) return;
    largest /= count;
    excess = excess_of.of(entropy / count, largest);
  }
};

/// The divisor of the sum over penalties in the loss; 0 where nothing counts. All lanes of the
/// block call it together and have it afterwards.
template <int kWarps, int kSlots, class Lane>
AERO_DEVICE float penalty_divisor(const EntropyRegularizationParams& p, Lane& lane, int slot) {
  const auto heads = static_cast<float>(p.layers * p.heads);
  if (p.reduction == EntropyReduction::kPositionSum) return heads;
  if (!p.row_mask) return p.queries > 0 ? heads * static_cast<float>(p.batch) : 0.0f;
  float used = 0;
  for (int64_t batch = warp_of(lane); batch < p.batch; batch += kWarps) {
    bool counts = false;
    for (int64_t i = lane.thread % kWarp; i < p.queries; i += kWarp)
      counts |= p.row_mask.data[batch * p.row_mask.strides.batch + i * p.row_mask.strides.row];
    const float lanes = sum_over_warp(lane, counts ? 1.0f : 0.0f);
    used += lane.thread % kWarp == 0 && lanes > 0 ? 1.0f : 0.0f;
  }
  return heads * RowTeam<kWarps, kSlots>::sum(lane, slot, used);
}

/// The params of the forward pass and its scratch memory.
struct EntropyPenaltyParams : EntropyRegularizationForwardParams {
  uint32_t* arrived;  ///< one number, 0 before the call
  float* penalties;   ///< [L, B, H]

  EntropyPenaltyParams(const EntropyRegularizationForwardParams& params, void* workspace)
      : EntropyRegularizationForwardParams(params),
        arrived(static_cast<uint32_t*>(workspace)),
        penalties(reinterpret_cast<float*>(arrived + 4)) {}

  static constexpr int64_t bytes(const EntropyRegularizationParams& p) {
    return 16 + p.layers * p.batch * p.heads * static_cast<int64_t>(sizeof(float));
  }
};

struct EntropyPenaltyPass {
  using Params = EntropyPenaltyParams;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarp;
  using Team = RowTeam<kWarps, 2>;
  static constexpr int kSharedBytes = Team::kSharedBytes;

  static constexpr int64_t row_count(const EntropyRegularizationParams& p) {
    return p.layers * p.batch * p.heads;
  }
  /// One at least: the loss is written whatever the sizes are.
  static int64_t block_count(const Params& p) {
    return row_count(p) > 0 ? tiles_of(row_count(p), kWarps) : 1;
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const int64_t index = block * kWarps + warp_of(lane), rows = row_count(p);
    if (index < rows) {
      const float penalty = penalty_of(p, lane, index);
      if (lane.thread % kWarp == 0) p.penalties[index] = penalty;
    }
    const int64_t blocks = rows > 0 ? (rows + kWarps - 1) / kWarps : 1;
    if (!lane.is_last_block(p.arrived, static_cast<uint32_t>(blocks))) return;
    float sum = 0;
    for (int64_t n = lane.thread; n < rows; n += kThreads) sum += p.penalties[n];
    sum = Team::sum(lane, 0, sum);
    const float divisor = penalty_divisor<kWarps, 2>(p, lane, 1);
    if (lane.thread == 0) *static_cast<float*>(p.loss) = divisor == 0 ? 0.0f : sum / divisor;
  }

 private:
  template <class Lane>
  AERO_DEVICE static float penalty_of(const Params& p, Lane& lane, int64_t index) {
    const int64_t layer = index / (p.batch * p.heads), head = index % p.heads;
    const EntropyRows rows(p, layer, index / p.heads % p.batch, head);
    const EntropyExcess excess_of{static_cast<const float*>(p.thresholds)[layer * p.heads + head],
                                  static_cast<float>(p.margin)};
    if (p.reduction == EntropyReduction::kQueryMean) {
      const EntropyMean mean(lane, rows, excess_of);
      return mean.excess * mean.excess;
    }
    float sum = 0;
    rows.visit(lane, [&](int, bool, float entropy, float largest) {
      const float excess = excess_of.of(entropy, largest);
      sum = __builtin_fmaf(excess, excess, sum);
    });
    return sum_over_warp(lane, sum);
  }
};

struct EntropyGradientPass {
  using Params = EntropyRegularizationBackwardParams;
  static constexpr int kWarps = 16;
  static constexpr int kThreads = kWarps * kWarp;
  using Team = RowTeam<kWarps, 2>;
  static constexpr int kSharedBytes = Team::kSharedBytes;

  static int64_t block_count(const Params& p) { return p.layers * p.heads; }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const float divisor = penalty_divisor<kWarps, 2>(p, lane, 0);
    const float factor = divisor == 0 ? 0.0f : 2 * (*static_cast<const float*>(p.dloss) / divisor);
    const int64_t layer = block / p.heads, head = block % p.heads;
    const EntropyExcess excess_of{static_cast<const float*>(p.thresholds)[block],
                                  static_cast<float>(p.margin)};
    float sum = 0;
    for (int64_t batch = warp_of(lane); batch < p.batch; batch += kWarps) {
      const EntropyRows rows(p, layer, batch, head);
      float* dentropies = static_cast<float*>(p.dentropies) +
                          ((layer * p.batch + batch) * p.heads + head) * p.queries;
      if (p.reduction == EntropyReduction::kPositionSum) {
        rows.visit(lane, [&](int i, bool, float entropy, float largest) {
          const float excess = excess_of.of(entropy, largest);
          dentropies[i] = excess == 0 ? 0.0f : excess * factor;
          sum = __builtin_fmaf(excess, largest, sum);
        });
      } else {
        const EntropyMean mean(lane, rows, excess_of);
        const float each = mean.excess == 0 ? 0.0f : mean.excess * factor / mean.count;
        rows.visit(lane, [&](int i, bool counted, float, float) {
          dentropies[i] = counted ? each : 0.0f;
        });
        if (lane.thread % kWarp == 0) sum = __builtin_fmaf(mean.excess, mean.largest, sum);
      }
    }
    sum = Team::sum(lane, 1, sum);
    // 0 times a factor that is inf or NaN would not be 0, here and above.
    if (lane.thread == 0)
      static_cast<float*>(p.dthresholds)[block] = sum == 0 ? 0.0f : -factor * sum;
  }
};

}  // namespace aero::kernels::cuda
