// Runs passes on an emulated GPU.
#pragma once

#include "tests/cpp/kernels/cuda/emulated_lane.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::cuda::testing {

/// Leaves the tensor's numbers as products of TF32 see them.
inline void round_to_tf32(kernels::testing::Tensor& tensor) {
  tensor.for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
    const auto x = static_cast<float>(tensor.get(b, h, i, d));
    tensor.set(b, h, i, d, __builtin_bit_cast(float, EmulatedLane::round_to_tf32(x)));
  });
}

/// What the passes of a call did.
struct Trace {
  BankConflicts conflicts;
  InstructionCounts instructions;
  int64_t blocks = 0;
};

/// Runs all blocks of a pass, one after the other.
template <class Pass>
void run_pass(const typename Pass::Params& params, Trace& trace) {
  EmulatedBlock block(Pass::kThreads, Pass::kSharedBytes);
  for (int64_t n = 0; n < Pass::block_count(params); ++n) {
    block.run([&](int thread) {
      EmulatedLane lane(block, thread, trace.instructions);
      Pass::run(params, n, lane);
    });
    ++trace.blocks;
  }
  const BankConflicts& more = block.shared().conflicts;
  trace.conflicts.matrices += more.matrices, trace.conflicts.loads += more.loads;
  trace.conflicts.stores += more.stores, trace.conflicts.copies += more.copies;
}

}  // namespace aero::kernels::cuda::testing
