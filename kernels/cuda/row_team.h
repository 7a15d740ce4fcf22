// The lanes that do a row together, a warp or all warps of a block, and their reductions.
#pragma once

#include "kernels/cuda/lane.h"

namespace aero::kernels::cuda {

/// Every reduction of a pass has a slot of its own in shared memory, so that one barrier is enough.
template <int kWarps, int kSlots>
struct RowTeam {
  static constexpr int kLanes = kWarps * kWarp;
  static constexpr int kSharedBytes = kWarps == 1 ? 0 : kSlots * kWarps * kWarp * 4;

  /// The reduction of all lanes' values, the same in every lane, in an order that never changes.
  template <class Lane, class Combine>
  AERO_DEVICE static float over_row(Lane& lane, int slot, float value, Combine combine) {
    AERO_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2)
      value = combine(value, lane.exchange(value, distance));
    if constexpr (kWarps > 1) {
      // Each lane has a word of its own; one of each warp is read.
      const int base = slot * kWarps * kWarp * 4;
      uint32_t mine[1];
      mine[0] = __builtin_bit_cast(uint32_t, value);
      lane.store_words(base + lane.thread * 4, mine);
      lane.barrier();
      AERO_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) {
        uint32_t word[1];
        lane.load_words(word, base + warp * kWarp * 4);
        const float of_warp = __builtin_bit_cast(float, word[0]);
        value = warp == 0 ? of_warp : combine(value, of_warp);
      }
    }
    return value;
  }
  template <class Lane>
  AERO_DEVICE static float sum(Lane& lane, int slot, float value) {
    return over_row(lane, slot, value, [](float a, float b) { return a + b; });
  }
  template <class Lane>
  AERO_DEVICE static float maximum(Lane& lane, int slot, float value) {
    return over_row(lane, slot, value, [](float a, float b) { return __builtin_fmaxf(a, b); });
  }
};

}  // namespace aero::kernels::cuda
