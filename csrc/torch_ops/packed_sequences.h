// Sequences packed one after the other into the rows of one batch entry: each is a call of its own
// on a part of the tensors. On the CPU all calls share out their items at once.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/tensor_checks.h"
#include "csrc/torch_ops/work_shares.h"
#include "kernels/attention_entropy.h"

namespace aero::torch_ops {

/// Sequence n has the queries [queries[n], queries[n + 1]) and the keys alike.
struct PackedSequences {
  std::vector<int64_t> queries, keys;

  size_t count() const { return queries.size() - 1; }
};

namespace packed {

inline void* moved(void* data, int64_t bytes) {
  return data ? static_cast<char*>(data) + bytes : nullptr;
}
inline const void* moved(const void* data, int64_t bytes) {
  return data ? static_cast<const char*>(data) + bytes : nullptr;
}
template <class Key>
Key* moved_keys(Key* data, int64_t count) {
  return data ? data + count : nullptr;
}
template <class T>
kernels::TensorView<T> from_row(const kernels::TensorView<T>& tensor, int64_t row, int64_t bytes) {
  return {moved(tensor.data, row * tensor.strides.row * bytes), tensor.strides};
}

/// The params of one sequence. What is contiguous per row lies in blocks [H, rows of a sequence].
template <class Params>
Params params_of(const Params& whole, const PackedSequences& sequences, size_t n) {
  Params p = whole;
  const int64_t query = sequences.queries[n], key = sequences.keys[n];
  const int64_t element = kernels::element_bytes(p.data_type);
  const int64_t statistic = kernels::statistic_bytes(p.data_type);
  const int64_t block = p.heads * query * statistic;
  p.queries = sequences.queries[n + 1] - query;
  p.keys = sequences.keys[n + 1] - key;
  p.q = from_row(p.q, query, element);
  p.k = from_row(p.k, key, element);
  p.v = from_row(p.v, key, element);
  p.temperature = from_row(p.temperature, query, statistic);
  p.out = from_row(p.out, query, element);
  p.statistics = moved(p.statistics, kernels::kSavedStatistics * block);
  p.largest_key = moved_keys(p.largest_key, p.heads * query);
  if (p.dropout.seeds) p.dropout.seeds += n;
  if constexpr (std::is_same_v<Params, kernels::AttentionEntropyForwardParams>) {
    p.entropy = moved(p.entropy, block);
    p.logsumexp = moved(p.logsumexp, block);
    p.max_logits = moved(p.max_logits, block);
  } else {
    p.dout = from_row(p.dout, query, element);
    p.dq = from_row(p.dq, query, element);
    p.dk = from_row(p.dk, key, element);
    p.dv = from_row(p.dv, key, element);
    p.dentropy = moved(p.dentropy, block);
    p.dlogsumexp = moved(p.dlogsumexp, block);
    p.dmax_logits = moved(p.dmax_logits, block);
    p.dtemperature = moved(p.dtemperature, block);
    p.dsinks = moved(p.dsinks, block);
    p.dslopes = moved(p.dslopes, block);
  }
  return p;
}

/// Copies rows from [H, T] into the blocks of their sequences, or back, where `like` is.
inline void copy_blocks(const PackedSequences& sequences, int64_t heads, int64_t bytes, void* rows,
                        void* blocks, bool to_blocks, [[maybe_unused]] const Tensor& like) {
  const int64_t pitch = sequences.queries.back() * bytes;
  std::vector<kernels::RowCopy> copies;
  for (size_t n = 0; n < sequences.count(); ++n) {
    const int64_t first = sequences.queries[n] * bytes;
    const int64_t count = sequences.queries[n + 1] * bytes - first;
    void *row = moved(rows, first), *block = moved(blocks, heads * first);
    if (to_blocks)
      copies.push_back({block, count, row, pitch, count, heads});
    else
      copies.push_back({row, pitch, block, count, count, heads});
  }
#if defined(AERO_CUDA)
  constexpr const char* op = "attention_entropy";
  if (like.is_cuda()) return kernels::cuda::copy_rows(op, copies, CudaQueue(op, like).get());
#endif
  for (const kernels::RowCopy& copy : copies)
    for (int64_t h = 0; h < copy.rows; ++h)
      std::memcpy(moved(copy.to, h * copy.to_pitch), moved(copy.from, h * copy.from_pitch),
                  static_cast<size_t>(copy.row_bytes));
}

/// Does one sequence after the other where there is a queue, with run_one(params).
template <class Params, class RunOne>
void run_each(const Params& whole, const PackedSequences& sequences, const RunOne& run_one) {
  for (size_t n = 0; n < sequences.count(); ++n) {
    Params call = params_of(whole, sequences, n);
    run_one(call);
  }
}

/// Does all items of all sequences on torch's threads. A long sequence's items take longer than a
/// short one's, so threads share out the work, not the items.
template <class Params>
void run_all(const Params& whole, const PackedSequences& sequences) {
  using namespace kernels::cpu;
  std::vector<Params> calls;
  WorkShares work;
  size_t bytes = 0;
  for (size_t n = 0; n < sequences.count(); ++n) {
    calls.push_back(params_of(whole, sequences, n));
    work.add(item_count(calls.back()), work_of(calls.back()));
    bytes = std::max(bytes, workspace_bytes(calls.back(), 1));
  }
  const Workspace workspace(bytes * static_cast<size_t>(thread_count()));
  const int64_t shares = std::min(thread_count(), work.all_items());
  torch::stable::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    uint32_t thread = 0;
    torch_get_thread_idx(&thread);
    void* own = static_cast<char*>(workspace.data()) + bytes * thread;
    work.for_each(first, last, shares,
                  [&](size_t n, int64_t begin, int64_t end) { run(calls[n], own, begin, end, 0); });
  });
}

/// The values of rows that go into a call and come out of it, [1, H, T].
inline void* kernels::AttentionEntropyForwardParams::* const kForwardResults[] = {
    &kernels::AttentionEntropyForwardParams::entropy,
    &kernels::AttentionEntropyForwardParams::logsumexp,
    &kernels::AttentionEntropyForwardParams::max_logits};
inline const void* kernels::AttentionEntropyBackwardParams::* const kBackwardInputs[] = {
    &kernels::AttentionEntropyBackwardParams::dentropy,
    &kernels::AttentionEntropyBackwardParams::dlogsumexp,
    &kernels::AttentionEntropyBackwardParams::dmax_logits};
inline void* kernels::AttentionEntropyBackwardParams::* const kBackwardResults[] = {
    &kernels::AttentionEntropyBackwardParams::dtemperature,
    &kernels::AttentionEntropyBackwardParams::dsinks,
    &kernels::AttentionEntropyBackwardParams::dslopes};

/// Blocks beside tensors of rows.
class Blocks {
 public:
  Blocks(const PackedSequences& sequences, const Tensor& like, int64_t heads, ScalarType type)
      : sequences_(sequences), like_(like), heads_(heads), type_(type) {}

  /// Values: void of the type of the blocks, or numbers of keys.
  template <class Values>
  void read(const Values*& rows) {
    if (!rows) return;
    void* blocks = allocate(type_of(rows));
    copy_blocks(sequences_, heads_, bytes_of(type_of(rows)), const_cast<Values*>(rows), blocks,
                true, like_);
    rows = static_cast<const Values*>(blocks);
  }
  template <class Values>
  void write(Values*& rows) {
    if (!rows) return;
    void* blocks = allocate(type_of(rows));
    written_.push_back({rows, blocks, bytes_of(type_of(rows))});
    rows = static_cast<Values*>(blocks);
  }
  void finish() const {
    for (const auto& [rows, blocks, bytes] : written_)
      copy_blocks(sequences_, heads_, bytes, rows, blocks, false, like_);
  }

 private:
  struct Written {
    void *rows, *blocks;
    int64_t bytes;
  };
  ScalarType type_of(const void* /*rows*/) const { return type_; }
  ScalarType type_of(const int64_t* /*rows*/) const { return ScalarType::Long; }
  static int64_t bytes_of(ScalarType type) { return type == ScalarType::Float ? 4 : 8; }
  void* allocate(ScalarType type) {
    memory_.emplace_back(like_, Shape{heads_ * sequences_.queries.back()}, type);
    return memory_.back().data();
  }

  const PackedSequences& sequences_;
  const Tensor& like_;
  const int64_t heads_;
  const ScalarType type_;
  std::vector<Result> memory_;
  std::vector<Written> written_;
};

}  // namespace packed

/// Calls run_one(params) with each sequence where `like` is not on the CPU.
template <class RunOne>
void run_packed(kernels::AttentionEntropyForwardParams params, const PackedSequences& sequences,
                const Tensor& like, ScalarType type, const RunOne& run_one) {
  packed::Blocks blocks(sequences, like, params.heads, type);
  for (const auto member : packed::kForwardResults) blocks.write(params.*member);
  blocks.write(params.largest_key);
  if (like.is_cpu())
    packed::run_all(params, sequences);
  else
    packed::run_each(params, sequences, run_one);
  blocks.finish();
}
template <class RunOne>
void run_packed(kernels::AttentionEntropyBackwardParams params, const PackedSequences& sequences,
                const Tensor& like, ScalarType type, const RunOne& run_one) {
  packed::Blocks blocks(sequences, like, params.heads, type);
  for (const auto member : packed::kBackwardInputs) blocks.read(params.*member);
  blocks.read(params.largest_key);
  for (const auto member : packed::kBackwardResults) blocks.write(params.*member);
  if (like.is_cpu())
    packed::run_all(params, sequences);
  else
    packed::run_each(params, sequences, run_one);
  blocks.finish();
}

}  // namespace aero::torch_ops
