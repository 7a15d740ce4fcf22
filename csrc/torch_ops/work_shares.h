// Shares of the items of several calls that cost as much as each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention_entropy.h"

namespace aero::torch_ops {

/// Keys that the queries of a head see by causal rule and window, and some for each query itself:
/// what attention costs, up to a factor.
inline double work_of(const kernels::AttentionEntropyParams& p) {
  constexpr int64_t query = 8;
  int64_t sum = query * p.queries;
  for (int64_t i = p.keys - p.queries; i < p.keys; ++i) {
    const int64_t end = p.ends() ? std::clamp<int64_t>(i + p.reach() + 1, 0, p.keys) : p.keys;
    const int64_t begin = p.window_left < 0 ? 0 : std::max<int64_t>(i - p.window_left, 0);
    sum += std::max<int64_t>(end - begin, 0);
  }
  return static_cast<double>(sum);
}

/// Entries of a batch whose gradients of one bias a thread sums as it forms them, so that memory is
/// taken for few sums: as many as leave the threads equal shares of the key heads, within an
/// eighth.
inline int64_t bias_entries(int64_t batch, int64_t key_heads, int64_t threads) {
  for (int64_t sums = 1; sums < batch; ++sums) {
    const int64_t entries = (batch + sums - 1) / sums, items = sums * key_heads;
    const int64_t longest = (items + threads - 1) / threads * entries;
    if (8 * longest * threads <= 9 * batch * key_heads) return entries;
  }
  return 1;
}

/// The items of calls in a row, cut into contiguous shares. Where they are cut depends on the calls
/// and the number of shares alone.
class WorkShares {
 public:
  struct Place {
    size_t call;
    int64_t item;
  };

  /// `work`: of all `items` of the call together, equal for each.
  void add(int64_t items, double work) {
    items_.push_back(items);
    all_items_ += items;
    ends_.push_back((ends_.empty() ? 0.0 : ends_.back()) + work);
  }
  int64_t all_items() const { return all_items_; }

  /// The first item of a share, which is the end of the one before.
  Place begin_of(int64_t share, int64_t shares) const {
    if (share <= 0 || ends_.empty()) return {0, 0};
    if (share >= shares) return {items_.size(), 0};
    const double work = ends_.back() * static_cast<double>(share) / static_cast<double>(shares);
    const auto call =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), work) - ends_.begin());
    if (call == items_.size()) return {call, 0};
    const double before = call == 0 ? 0.0 : ends_[call - 1];
    const double part = (work - before) / (ends_[call] - before);
    return {call, std::llround(part * static_cast<double>(items_[call]))};
  }

  /// Calls body(call, first, last) for the items of the shares [first_share, last_share) of each
  /// call that has any there.
  template <class Body>
  void for_each(int64_t first_share, int64_t last_share, int64_t shares, const Body& body) const {
    const Place from = begin_of(first_share, shares), to = begin_of(last_share, shares);
    for (size_t call = from.call; call < items_.size() && call <= to.call; ++call) {
      const int64_t first = call == from.call ? from.item : 0;
      const int64_t last = call == to.call ? to.item : items_[call];
      if (first < last) body(call, first, last);
    }
  }

 private:
  std::vector<int64_t> items_;
  std::vector<double> ends_;  ///< work of the calls up to each
  int64_t all_items_ = 0;
};

}  // namespace aero::torch_ops
