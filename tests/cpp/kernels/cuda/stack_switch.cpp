#include "tests/cpp/kernels/cuda/stack_switch.h"

#if defined(__x86_64__)
// The registers that a function must keep (System V ABI) go to the stack, whose pointer is all that
// has to be remembered. swapcontext does the same, and two system calls.
extern "C" void aero_switch_stack(void** here, void* there);
asm(R"(
  .text
  .type aero_switch_stack, @function
aero_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size aero_switch_stack, . - aero_switch_stack
)");

namespace aero::kernels::cuda::testing {

void begin_stack(StackPoint& point, char* stack, size_t bytes, void (*entry)()) {
  // From the top: a return address for entry() (none), entry() itself, six registers.
  void** top = reinterpret_cast<void**>(stack + bytes / 16 * 16) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int n = 0; n < 6; ++n) *--top = nullptr;
  point.pointer = top;
}

void switch_stack(StackPoint& here, StackPoint& there) {
  aero_switch_stack(&here.pointer, there.pointer);
}

}  // namespace aero::kernels::cuda::testing

#else

namespace aero::kernels::cuda::testing {

void begin_stack(StackPoint& point, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&point.context);
  point.context.uc_stack.ss_sp = stack;
  point.context.uc_stack.ss_size = bytes;
  point.context.uc_link = nullptr;
  makecontext(&point.context, entry, 0);
}

void switch_stack(StackPoint& here, StackPoint& there) {
  swapcontext(&here.context, &there.context);
}

}  // namespace aero::kernels::cuda::testing
#endif
