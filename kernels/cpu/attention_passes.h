// The passes of attention for each data type, as the including file is compiled.
#pragma once

#include "kernels/cpu/attention_entropy_backward.h"
#include "kernels/cpu/attention_entropy_decode.h"
#include "kernels/cpu/attention_entropy_decode_backward.h"
#include "kernels/cpu/attention_entropy_forward.h"

namespace aero::kernels::cpu {
namespace {

/// A pass to name in a call.
template <class P>
struct Chosen {
  using Pass = P;
};

#if defined(__AMX_BF16__)
using PairOperands = Tiled;
#elif defined(AERO_MULTIPLIES_PAIRS)
using PairOperands = Paired;
#endif

/// Calls function(Chosen<Pass<Operands>>) with the operands for these params: bfloat16 goes in
/// pairs where the machine multiplies pairs and both widths are even; in tile registers where one
/// shape of them takes the ends of both.
template <template <class> class Pass, class Element, class Real, class Params, class Function>
auto with_operands([[maybe_unused]] const Params& p, Function&& function) {
#if defined(AERO_MULTIPLIES_PAIRS)
  if constexpr (__is_same(Element, BFloat16))
    if (p.head_dim % 2 == 0 && p.value_dim % 2 == 0) {
#if defined(__AMX_BF16__)
      if ((p.head_dim - p.value_dim) % (2 * kTilePairs) != 0)
        return function(Chosen<Pass<Paired>>{});
#endif
      return function(Chosen<Pass<PairOperands>>{});
    }
#endif
  return function(Chosen<Pass<Single<Element, Real>>>{});
}

/// The three functions of a kernel, each passed on to the pass that Direction chooses for the
/// params.
template <class Direction, class P>
struct ByParams {
  using Params = P;

  static int64_t scratch_bytes(const Params& p) {
    return Direction::choose(p,
                             [&](auto chosen) { return decltype(chosen)::Pass::scratch_bytes(p); });
  }
  static int64_t item_count(const Params& p) {
    return Direction::choose(p, [&](auto chosen) { return decltype(chosen)::Pass::item_count(p); });
  }
  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    Direction::choose(p,
                      [&](auto chosen) { decltype(chosen)::Pass::run(p, scratch, first, last); });
  }

 private:
  friend Direction;
  ByParams() = default;
};

template <class Element, class Real>
struct AttentionEntropyForward
    : ByParams<AttentionEntropyForward<Element, Real>, AttentionEntropyForwardParams> {
  template <class Function>
  static auto choose(const AttentionEntropyForwardParams& p, Function&& function) {
    if (p.queries <= kFewQueries) return function(Chosen<DecodePass<Element, Real>>{});
    return with_operands<ForwardPass, Element, Real>(p, function);
  }
};

template <class Element, class Real>
struct AttentionEntropyBackward
    : ByParams<AttentionEntropyBackward<Element, Real>, AttentionEntropyBackwardParams> {
  template <class Function>
  static auto choose(const AttentionEntropyBackwardParams& p, Function&& function) {
    if (p.queries <= kFewQueries) return function(Chosen<DecodeBackwardPass<Element, Real>>{});
    return with_operands<BackwardPass, Element, Real>(p, function);
  }
};

}  // namespace
}  // namespace aero::kernels::cpu
