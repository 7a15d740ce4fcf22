#include "tests/cpp/kernels/cuda/emulated_block.h"

#include <sys/mman.h>

#include <exception>
#include <new>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace aero::kernels::cuda::testing {
namespace {

constexpr size_t kStackBytes = 128 * 1024;

/// The block whose threads run now.
thread_local EmulatedBlock* running = nullptr;

/// Frames that did not return leave their red zones behind: for the next run, or, once the memory
/// is given back, for whoever maps the same addresses.
void forget_frames([[maybe_unused]] const Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.stack, kStackBytes);
#endif
}

}  // namespace

EmulatedBlock::EmulatedBlock(int threads, int shared_bytes)
    : fibers_(static_cast<size_t>(threads)),
      warps_(static_cast<size_t>(threads / 32)),
      shared_(shared_bytes, threads) {
  for (Fiber& fiber : fibers_) {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    fiber.stack = static_cast<char*>(stack);
    fiber.stack_bytes = kStackBytes;
  }
}

EmulatedBlock::~EmulatedBlock() {
  for (Fiber& fiber : fibers_) {
    forget_frames(fiber);
    munmap(const_cast<char*>(fiber.stack), kStackBytes);
  }
}

void EmulatedBlock::fail(const std::string& what) { throw std::logic_error(what); }

void EmulatedBlock::run(const std::function<void(int)>& program) {
  program_ = &program;
  shared_.begin_block();
  failure_.clear();
  finished_ = at_barrier_ = polls_ = 0;
  for (Gathering& warp : warps_) warp.arrived = 0;
  for (Fiber& fiber : fibers_) {
    fiber.finished = fiber.at_barrier = false;
    forget_frames(fiber);
    begin_stack(fiber.point, const_cast<char*>(fiber.stack), kStackBytes, &EmulatedBlock::entry);
  }
  running = this;
  current_ = &main_;
  switch_to(&main_, fibers_.data());
  if (!failure_.empty()) throw std::logic_error(failure_);
  shared_.end_block();
}

void EmulatedBlock::entry() { running->run_fiber(); }

void EmulatedBlock::run_fiber() {
  const auto thread = static_cast<int>(current_ - fibers_.data());
#if defined(__SANITIZE_ADDRESS__)
  const void* from = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &from, &bytes);
  if (thread == 0) main_.stack = static_cast<const char*>(from), main_.stack_bytes = bytes;
#endif
  try {
    (*program_)(thread);
  } catch (const std::exception& error) {
    failure_ = "thread " + std::to_string(thread) + ": " + error.what();
  }
  current_->finished = true;
  ++finished_;
  polls_ = 0;
  if (failure_.empty() && at_barrier_ > 0)
    failure_ = "thread " + std::to_string(thread) + " ended where others wait at a barrier";
  const int next = failure_.empty() ? next_after(thread) : -1;
  switch_to(current_, next < 0 ? &main_ : &fibers_[static_cast<size_t>(next)]);
}

int EmulatedBlock::next_after(int thread) const {
  // The lanes of the same warp first, so that a warp stays together.
  const int warp = thread / 32 * 32, threads = static_cast<int>(fibers_.size());
  const auto can_run = [&](int n) {
    const Fiber& fiber = fibers_[static_cast<size_t>(n)];
    return !fiber.finished && !fiber.at_barrier;
  };
  for (int n = 1; n <= 32; ++n) {
    const int lane = warp + (thread + n) % 32;
    if (can_run(lane)) return lane;
  }
  for (int n = 32; n < threads; ++n) {
    const int other = (warp + n) % threads;
    if (can_run(other)) return other;
  }
  return -1;
}

void EmulatedBlock::yield(int thread) {
  if (++polls_ > 4 * static_cast<int>(fibers_.size()) + 64)
    fail(std::string("lanes of a warp wait at ") +
         warps_[static_cast<size_t>(thread / 32)].instruction + " for lanes that do not come");
  const int next = next_after(thread);
  if (next < 0) fail("no thread can go on");
  if (next != thread)
    switch_to(&fibers_[static_cast<size_t>(thread)], &fibers_[static_cast<size_t>(next)]);
}

void EmulatedBlock::barrier(int thread) {
  if (finished_ > 0) fail("a barrier that other threads do not come to");
  if (warps_[static_cast<size_t>(thread / 32)].arrived > 0)
    fail(std::string("lanes of a warp part: barrier and ") +
         warps_[static_cast<size_t>(thread / 32)].instruction);
  polls_ = 0;
  if (++at_barrier_ == static_cast<int>(fibers_.size())) {
    at_barrier_ = 0;
    ++barriers_;
    for (Fiber& fiber : fibers_) fiber.at_barrier = false;
    shared_.barrier();
    return;
  }
  const uint64_t now = barriers_;
  Fiber& fiber = fibers_[static_cast<size_t>(thread)];
  fiber.at_barrier = true;
  while (barriers_ == now) yield(thread);
}

void EmulatedBlock::switch_to(Fiber* from, Fiber* to) {
  current_ = to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from->finished ? nullptr : &from->shadow_stack, to->stack,
                                 to->stack_bytes);
#endif
  switch_stack(from->point, to->point);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->shadow_stack, nullptr, nullptr);
#endif
}

}  // namespace aero::kernels::cuda::testing
