// Going on with another stack, and coming back.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace aero::kernels::cuda::testing {

/// Where a stack stopped.
struct StackPoint {
#if defined(__x86_64__)
  void* pointer = nullptr;
#else
  ucontext_t context;
#endif
};

/// Makes `point` the beginning of entry(), which must not return, on a stack of its own.
void begin_stack(StackPoint& point, char* stack, size_t bytes, void (*entry)());

/// Stops at `here` and goes on at `there`; returns when somebody goes on at `here`.
void switch_stack(StackPoint& here, StackPoint& there);

}  // namespace aero::kernels::cuda::testing
