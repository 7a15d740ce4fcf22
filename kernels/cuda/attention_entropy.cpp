// Attention with temperature and entropy on a GPU: a call that cannot be launched is an error in
// words.
#include "kernels/attention_entropy.h"

#include <cstdlib>
#include <stdexcept>

#include "kernels/cuda/attention_entropy_kernels.h"
#include "kernels/cuda/attention_entropy_passes.h"

namespace aero::kernels::cuda {
namespace {

constexpr const char* kOp = "attention_entropy";
constexpr int64_t kMaxWidth = 256;  // of D, which Dv must be

void check(const AttentionEntropyParams& p) {
  check_type(kOp, "q", p.data_type);
  if (p.head_dim > kMaxWidth)
    refuse(kOp, "D must be at most " + std::to_string(kMaxWidth) + ", got " +
                    std::to_string(p.head_dim));
  if (p.value_dim != p.head_dim)
    refuse(kOp, "Dv must be D (" + std::to_string(p.head_dim) + ") on CUDA, got " +
                    std::to_string(p.value_dim));
  if (p.bias) refuse(kOp, "bias must be null on CUDA");
  if (p.alibi_slopes) refuse(kOp, "alibi_slopes must be null on CUDA");
  check_positions(kOp, p.queries, p.keys);
  if (p.batch * p.heads > kMaxPositions)
    refuse(kOp, "B * H must be at most " + std::to_string(kMaxPositions) + " on CUDA, got " +
                    std::to_string(p.batch * p.heads));
}

template <class Params>
void launch_checked(const Params& params, const Queue& queue) {
  check(params);
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    launch_of_type(params, stream, error);
  });
}

/// The choice of AERO_CUDA_BACKWARD. Read anew at every call, so tests may change the variable.
BackwardScheme backward_scheme() {
  const char* wanted = std::getenv("AERO_CUDA_BACKWARD");
  const std::string scheme = wanted ? wanted : "";
  if (scheme.empty()) return BackwardScheme::kBySize;
  if (scheme == "heads") return BackwardScheme::kHeads;
  if (scheme == "split") return BackwardScheme::kSplit;
  throw std::invalid_argument("AERO_CUDA_BACKWARD must be heads or split, got " + scheme);
}

}  // namespace

int64_t head_blocks(const AttentionEntropyBackwardParams& params, const Queue& queue) {
  const BackwardScheme scheme = backward_scheme();
  return head_blocks_for(params, multiprocessors(kOp, queue), scheme);
}

size_t workspace_bytes(const AttentionEntropyBackwardParams& params) {
  return static_cast<size_t>(backward_bytes(params));
}

void launch(const AttentionEntropyForwardParams& params, const Queue& queue) {
  launch_checked(params, queue);
}

void launch(const AttentionEntropyBackwardParams& params, void* workspace, const Queue& queue) {
  launch_checked(BackwardParams{params, workspace}, queue);
}

}  // namespace aero::kernels::cuda
