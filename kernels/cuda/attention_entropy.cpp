// Attention with temperature and entropy on a GPU: what cannot be launched is said in words.
#include "kernels/attention_entropy.h"

#include "kernels/cuda/attention_entropy_kernels.h"

namespace aero::kernels::cuda {
namespace {

constexpr const char* kOp = "attention_entropy";

void check(const AttentionEntropyParams& p) {
  check_type(kOp, "q", p.data_type);
  if (p.head_dim > kMaxHeadDim)
    refuse(kOp, "D must be at most " + std::to_string(kMaxHeadDim) + ", got " +
                    std::to_string(p.head_dim));
  check_positions(kOp, p.queries, p.keys);
}

template <class Params>
void launch_checked(const Params& params, const Queue& queue) {
  check(params);
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    launch_of_type(params, stream, error);
  });
}

}  // namespace

size_t workspace_bytes(const AttentionEntropyBackwardParams& params) {
  return static_cast<size_t>(RowTable::bytes(params));
}

void launch(const AttentionEntropyForwardParams& params, const Queue& queue) {
  launch_checked(params, queue);
}

void launch(const AttentionEntropyBackwardParams& params, void* workspace, const Queue& queue) {
  launch_checked(BackwardParams{params, workspace}, queue);
}

}  // namespace aero::kernels::cuda
