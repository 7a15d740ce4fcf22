// Which passes do a call: the same choice for the kernels and for their emulation.
#pragma once

#include "kernels/cuda/attention_entropy_backward.h"
#include "kernels/cuda/attention_entropy_forward.h"

namespace aero::kernels::cuda {

template <int kValue>
struct Width {
  static constexpr int value = kValue;
};

/// Calls visit(Width<n>) with the head width rounded up to one that there are kernels for.
template <class Visit>
void with_width(int64_t head_dim, Visit visit) {
  if (head_dim <= 32)
    visit(Width<32>{});
  else if (head_dim <= 64)
    visit(Width<64>{});
  else if (head_dim <= 96)
    visit(Width<96>{});
  else if (head_dim <= 128)
    visit(Width<128>{});
  else
    visit(Width<256>{});
}

/// Calls visit(Chosen<Pass>) with the pass that does the forward direction.
template <class Element, class Visit>
void with_forward_pass(const AttentionEntropyForwardParams& p, Visit visit) {
  with_width(p.head_dim, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    if constexpr (kWidth * Element::kBytes <= 128 && Element::kBytes == 2) {
      using Short = ShortForwardShape<Element, kWidth>;
      if (p.queries <= Short::kQueries && p.keys <= Short::kKeys)
        return visit(Chosen<ForwardPass<Short>>{});
    }
    visit(Chosen<ForwardPass<ForwardShape<Element, kWidth>>>{});
  });
}

/// Calls visit(Chosen<Pass>) with the passes of the backward direction, in their order.
template <class Element, class Visit>
void for_backward_passes(const AttentionEntropyBackwardParams& p, Visit visit) {
  visit(Chosen<BackwardRowsPass<Element>>{});
  with_width(p.head_dim, [&](auto width) {
    using Shape = BackwardShape<Element, decltype(width)::value>;
    visit(Chosen<BackwardQueryPass<Shape>>{});
    visit(Chosen<BackwardKeyPass<Shape>>{});
  });
}

}  // namespace aero::kernels::cuda
