// How the processor treats numbers below the smallest normal one.
#pragma once

#include "kernels/cpu/simd.h"

namespace aero::kernels::cpu {
namespace {

/// While it lives, this thread's results below the smallest normal number are 0, where `wanted`.
/// Intel's processors take some 150 cycles for such a number: on a Cascade Lake the gradients of
/// keys far down ALiBi's slopes made the backward pass take 2.7 times as long. ARM takes them in
/// its stride.
class FlushedSubnormals {
 public:
#if defined(__x86_64__)
  explicit FlushedSubnormals(bool wanted) {
    if (wanted) _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON);
  }
  ~FlushedSubnormals() { _mm_setcsr(before_); }
#else
  explicit FlushedSubnormals(bool /*wanted*/) {}
#endif
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

#if defined(__x86_64__)
 private:
  const unsigned before_ = _mm_getcsr();
#endif
};

}  // namespace
}  // namespace aero::kernels::cpu
