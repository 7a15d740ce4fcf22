// The passes of attention for each data type, as the including file is compiled.
#pragma once

#include "kernels/cpu/attention_entropy_backward.h"
#include "kernels/cpu/attention_entropy_forward.h"

namespace aero::kernels::cpu {
namespace {

/// Pass: ForwardPass or BackwardPass.
template <template <class> class Pass, class Element, class Real>
struct AttentionEntropy : Pass<Single<Element, Real>> {};

#if defined(__AVX512BF16__)
/// bfloat16 in pairs, or in single precision where the head width is odd.
template <template <class> class Pass>
struct AttentionEntropy<Pass, BFloat16, float> {
  using Params = typename Pass<Paired>::Params;

  static int64_t scratch_bytes(const Params& p) {
    return larger(Pass<Paired>::scratch_bytes(p), Pass<Single<BFloat16, float>>::scratch_bytes(p));
  }
  static int64_t item_count(const Params& p) { return Pass<Paired>::item_count(p); }
  static void run(const Params& p, void* scratch, int64_t first, int64_t last) {
    if (p.head_dim % 2 == 0)
      Pass<Paired>::run(p, scratch, first, last);
    else
      Pass<Single<BFloat16, float>>::run(p, scratch, first, last);
  }
};
#endif

template <class Element, class Real>
using AttentionEntropyForward = AttentionEntropy<ForwardPass, Element, Real>;
template <class Element, class Real>
using AttentionEntropyBackward = AttentionEntropy<BackwardPass, Element, Real>;

}  // namespace
}  // namespace aero::kernels::cpu
