// A block of GPU threads on the host: each has a stack of its own and runs until it must wait for
// the others of its warp (a warp instruction) or of its block (a barrier).
//
// What a GPU would leave undefined throws here: lanes of a warp that part at a warp instruction,
// lanes that miss a barrier, and all that shared_memory.h knows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/kernels/cuda/shared_memory.h"
#include "tests/cpp/kernels/cuda/stack_switch.h"

namespace aero::kernels::cuda::testing {

/// One thread's stack and where it stopped.
struct Fiber {
  StackPoint point;
  const char* stack = nullptr;  ///< its lowest byte; main's is known to the address sanitizer alone
  size_t stack_bytes = 0;
  void* shadow_stack = nullptr;  ///< the address sanitizer's
  bool finished = false, at_barrier = false;
};

/// The 32 lanes of a warp at a warp instruction.
struct Gathering {
  const char* instruction = nullptr;
  int arrived = 0;
  uint64_t generation = 0;
  void* arguments[32];
};

class EmulatedBlock {
 public:
  EmulatedBlock(int threads, int shared_bytes);
  ~EmulatedBlock();
  EmulatedBlock(const EmulatedBlock&) = delete;
  EmulatedBlock& operator=(const EmulatedBlock&) = delete;

  /// Runs program(thread) for all threads; throws std::logic_error with what went wrong.
  void run(const std::function<void(int)>& program);

  SharedMemory& shared() { return shared_; }

  bool is_last = false;  ///< whether this block was the last of its grid to arrive

  /// Waits for the 32 lanes of a warp and does `execute` once, with the arguments of each.
  template <class Arguments, class Execute>
  void together(int thread, const char* instruction, Arguments& arguments, Execute&& execute) {
    Gathering& warp = warps_[static_cast<size_t>(thread / 32)];
    if (warp.arrived > 0 && warp.instruction != instruction)
      fail(std::string("lanes of a warp part: ") + instruction + " and " + warp.instruction);
    warp.instruction = instruction;
    warp.arguments[thread % 32] = &arguments;
    if (++warp.arrived < 32) {
      const uint64_t generation = warp.generation;
      while (warp.generation == generation) yield(thread);
      return;
    }
    warp.arrived = 0;
    ++warp.generation;
    polls_ = 0;
    Arguments* lanes[32];
    for (int n = 0; n < 32; ++n) lanes[n] = static_cast<Arguments*>(warp.arguments[n]);
    execute(lanes);
  }
  void barrier(int thread);

  [[noreturn]] static void fail(const std::string& what);

 private:
  static void entry();
  void run_fiber();
  /// Lets another thread that can go on, do so.
  void yield(int thread);
  int next_after(int thread) const;
  void switch_to(Fiber* from, Fiber* to);

  std::vector<Fiber> fibers_;
  std::vector<Gathering> warps_;
  SharedMemory shared_;
  Fiber main_;
  Fiber* current_ = nullptr;
  const std::function<void(int)>* program_ = nullptr;
  std::string failure_;
  int finished_ = 0, at_barrier_ = 0;
  uint64_t barriers_ = 0;
  int polls_ = 0;  ///< switches since somebody got further
};

}  // namespace aero::kernels::cuda::testing
