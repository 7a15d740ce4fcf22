// Calls of attention on an emulated GPU.
#pragma once

#include <memory>

#include "kernels/cuda/attention_entropy_passes.h"
#include "tests/cpp/kernels/attention_entropy_reference.h"
#include "tests/cpp/kernels/cuda/emulation.h"

namespace aero::kernels::cuda::testing {

// The passes of one element type each, defined in attention_entropy_emulation_<type>.cpp so that
// they compile apart.
void run_emulated(BFloat16, const AttentionEntropyForwardParams& params, Trace& trace);
void run_emulated(Float16, const AttentionEntropyForwardParams& params, Trace& trace);
void run_emulated(Float32, const AttentionEntropyForwardParams& params, Trace& trace);
void run_emulated(TensorFloat32, const AttentionEntropyForwardParams& params, Trace& trace);
void run_emulated(BFloat16, const BackwardParams& params, Trace& trace);
void run_emulated(Float16, const BackwardParams& params, Trace& trace);
void run_emulated(Float32, const BackwardParams& params, Trace& trace);
void run_emulated(TensorFloat32, const BackwardParams& params, Trace& trace);

inline Trace run_emulated(const AttentionEntropyForwardParams& params) {
  Trace trace;
  with_element(params, [&](auto element) { run_emulated(element, params, trace); });
  return trace;
}

inline Trace run_emulated(const AttentionEntropyBackwardParams& params) {
  Trace trace;
  kernels::testing::Buffer<unsigned char, 64> workspace(static_cast<size_t>(backward_bytes(params)),
                                                        0xff);
  BackwardParams with_workspace{params, workspace.data()};
  with_element(params, [&](auto element) { run_emulated(element, with_workspace, trace); });
  return trace;
}

}  // namespace aero::kernels::cuda::testing
