// Attention with temperature and entropy on the CPU: picks the kernels of the instruction set in
// use.
#include "kernels/attention_entropy.h"

#include <algorithm>

#include "kernels/cpu/attention_entropy_decode.h"
#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

template <class Params>
const auto& kernel_for(const Params& params) {
  return kernels_in_use().attention_entropy.of(params);
}

}  // namespace

size_t workspace_bytes(const AttentionEntropyForwardParams& params, int64_t threads) {
  return scratch_bytes(kernel_for(params), params) * static_cast<size_t>(threads);
}
size_t workspace_bytes(const AttentionEntropyBackwardParams& params, int64_t threads) {
  return scratch_bytes(kernel_for(params), params) * static_cast<size_t>(threads);
}

int64_t key_parts(const AttentionEntropyForwardParams& params, int64_t threads) {
  // Four items to a thread leave at most a fifth of the threads' time idle; below 256 keys an item
  // is shorter than its start and its part of finish.
  constexpr int64_t kItemsPerThread = 4, kFewestKeys = 256;
  const int64_t rows = params.batch * params.heads * params.queries;
  if (threads == 1 || rows == 0 || params.queries > kFewQueries) return 1;
  const int64_t wanted = (kItemsPerThread * threads + rows - 1) / rows;
  const int64_t left = params.window_left;
  const int64_t seen = left < 0 ? params.keys : std::min(params.keys, left + params.queries);
  return std::max<int64_t>(1, std::min(wanted, seen / kFewestKeys));
}

size_t partial_bytes(const AttentionEntropyForwardParams& params) {
  if (params.key_parts == 1) return 0;
  const int64_t rows = params.batch * params.heads * params.queries;
  return static_cast<size_t>(rows * params.key_parts * (kPartialStatistics + params.value_dim) *
                             statistic_bytes(params.data_type));
}

int64_t item_count(const AttentionEntropyForwardParams& params) {
  return kernel_for(params).item_count(params);
}
int64_t item_count(const AttentionEntropyBackwardParams& params) {
  return kernel_for(params).item_count(params);
}

void run(const AttentionEntropyForwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(kernel_for(params), params, workspace, first, last, thread);
}
void run(const AttentionEntropyBackwardParams& params, void* workspace, int64_t first, int64_t last,
         int64_t thread) {
  run_items(kernel_for(params), params, workspace, first, last, thread);
}

// A few thousand numbers: compiled for the plain machine alone.
void finish(const AttentionEntropyForwardParams& params) {
  if (params.key_parts == 1) return;
  with_element(params.data_type, [&]<class Type>(Type) {
    DecodePass<typename Type::Element, typename Type::Real>::finish_parts(params);
  });
}

}  // namespace aero::kernels::cpu
