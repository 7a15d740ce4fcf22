// Shares of the items of packed sequences.
#include "csrc/torch_ops/work_shares.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace aero::torch_ops {
namespace {

kernels::AttentionEntropyParams attention(int64_t queries, int64_t keys, bool is_causal) {
  kernels::AttentionEntropyParams params;
  params.queries = queries;
  params.keys = keys;
  params.is_causal = is_causal;
  return params;
}

/// Times that each item is done, and work of each share, item by item.
struct Done {
  std::vector<std::vector<int>> times;
  std::vector<double> work;
};
Done all_shares(const std::vector<int64_t>& items, const std::vector<double>& work,
                int64_t shares) {
  WorkShares cut;
  Done done;
  for (size_t n = 0; n < items.size(); ++n) {
    cut.add(items[n], work[n]);
    done.times.emplace_back(static_cast<size_t>(items[n]), 0);
  }
  for (int64_t share = 0; share < shares; ++share) {
    done.work.push_back(0);
    cut.for_each(share, share + 1, shares, [&](size_t n, int64_t first, int64_t last) {
      done.work.back() +=
          work[n] * static_cast<double>(last - first) / static_cast<double>(items[n]);
      for (int64_t item = first; item < last; ++item) ++done.times[n][static_cast<size_t>(item)];
    });
  }
  return done;
}

TEST(WorkShares, LongSequencesAfterShortOnesAreSharedOut) {
  // Forward passes have an item for each head and 64 queries, backward passes one for each head.
  for (const int64_t rows : {int64_t{64}, int64_t{1} << 20})
    for (const int64_t shares : {2, 3, 8}) {
      std::vector<int64_t> items;
      std::vector<double> work;
      for (const int64_t length : {64, 128, 192, 256, 448, 640, 1024, 1344}) {
        items.push_back(12 * ((length + rows - 1) / rows));
        work.push_back(work_of(attention(length, length, true)));
      }
      const Done done = all_shares(items, work, shares);
      const double all = std::accumulate(work.begin(), work.end(), 0.0);
      const double item = work.back() / static_cast<double>(items.back());
      for (const double share : done.work)
        EXPECT_NEAR(share, all / static_cast<double>(shares), item) << rows << " " << shares;
    }
}

TEST(BiasEntries, LeaveEveryThreadItsShareAndTakeFewSums) {
  EXPECT_EQ(bias_entries(32, 12, 2), 32);
  EXPECT_EQ(bias_entries(32, 12, 1), 32);
  EXPECT_EQ(bias_entries(32, 12, 8), 16);  // twelve heads do not share out among eight threads
  EXPECT_EQ(bias_entries(32, 4, 8), 16);
  EXPECT_EQ(bias_entries(64, 1, 8), 8);
  EXPECT_EQ(bias_entries(2, 1, 8), 1);
  EXPECT_EQ(bias_entries(1, 12, 2), 1);
  EXPECT_EQ(bias_entries(0, 12, 2), 1);
  for (int64_t batch = 1; batch < 40; ++batch)
    for (const int64_t key_heads : {1, 2, 5, 12})
      for (int64_t threads = 1; threads < 20; ++threads) {
        const int64_t entries = bias_entries(batch, key_heads, threads);
        const int64_t items = (batch + entries - 1) / entries * key_heads;
        const int64_t longest = (items + threads - 1) / threads * entries;
        EXPECT_TRUE(entries == 1 || 8 * longest * threads <= 9 * batch * key_heads);
      }
}

TEST(WorkShares, EveryItemIsDoneOnce) {
  std::mt19937 random(0);
  for (int round = 0; round < 1000; ++round) {
    std::vector<int64_t> items;
    std::vector<double> work;
    for (size_t n = random() % 6; n > 0; --n) {
      const int64_t queries = random() % 4 == 0 ? 0 : random() % 50;
      items.push_back(random() % 8);  // gradients of keys without queries are items too
      work.push_back(work_of(attention(queries, random() % 60, random() % 2 == 0)));
    }
    const Done done = all_shares(items, work, 1 + random() % 9);
    for (const auto& call : done.times)
      for (const int times : call) ASSERT_EQ(times, 1) << round;
  }
}

TEST(WorkShares, WorkIsWhatQueriesSee) {
  const auto seen = [](const kernels::AttentionEntropyParams& params) {
    return work_of(params) - 8.0 * static_cast<double>(params.queries);
  };
  EXPECT_EQ(seen(attention(4, 6, false)), 24);
  EXPECT_EQ(seen(attention(4, 4, true)), 1 + 2 + 3 + 4);
  EXPECT_EQ(seen(attention(2, 6, true)), 5 + 6);
  EXPECT_EQ(seen(attention(5, 2, true)), 1 + 2);  // the first three see nothing
  kernels::AttentionEntropyParams window = attention(6, 6, true);
  window.window_left = 1;
  EXPECT_EQ(seen(window), 1 + 5 * 2);
  window.is_causal = false;
  window.window_right = 1;
  EXPECT_EQ(seen(window), 2 + 4 * 3 + 2);
}

}  // namespace
}  // namespace aero::torch_ops
