// The emulated GPU sees the mistakes that a real one would not tell.
#include "tests/cpp/kernels/cuda/emulated_block.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cpp/kernels/cuda/emulated_lane.h"

namespace aero::kernels::cuda::testing {
namespace {

/// What a program of 64 threads is stopped with; "" where it ends.
template <class Program>
std::string failure_of(Program program) {
  EmulatedBlock block(64, 1024);
  InstructionCounts counts;
  try {
    block.run([&](int thread) {
      EmulatedLane lane(block, thread, counts);
      program(lane);
    });
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

void expect_failure(const std::string& failure, const std::string& part) {
  EXPECT_NE(failure.find(part), std::string::npos) << failure;
}

alignas(16) const uint32_t kSource[4] = {1, 2, 3, 4};

TEST(EmulatedBlock, LetsThreadsPassWordsOnThroughABarrier) {
  EXPECT_EQ(failure_of([](EmulatedLane& lane) {
              const uint32_t mine[1] = {static_cast<uint32_t>(lane.thread)};
              lane.store_words(lane.thread * 4, mine);
              lane.barrier();
              uint32_t other[1];
              lane.load_words(other, (63 - lane.thread) * 4);
              if (other[0] != static_cast<uint32_t>(63 - lane.thread))
                throw std::logic_error("wrong word");
            }),
            "");
}

TEST(EmulatedBlock, SeesAMissingBarrier) {
  const uint32_t mine[1] = {0};
  expect_failure(failure_of([&](EmulatedLane& lane) {
                   lane.store_words(lane.thread * 4, mine);
                   uint32_t other[1];
                   lane.load_words(other, (lane.thread ^ 1) * 4);
                 }),
                 "load of what another thread wrote since the barrier");
  // Which warp comes first is not said: either a load or a store comes too early.
  expect_failure(failure_of([&](EmulatedLane& lane) {
                   lane.store_words(lane.thread * 4, mine);
                   lane.barrier();
                   uint32_t other[1];
                   lane.load_words(other, (63 - lane.thread) * 4);
                   lane.store_words(lane.thread * 4, mine);
                 }),
                 "since the barrier");
  expect_failure(
      failure_of([&](EmulatedLane& lane) { lane.store_words(lane.thread % 32 * 4, mine); }),
      "store over a word that another thread wrote since the barrier");
}

TEST(EmulatedBlock, SeesACopyThatWasNotWaitedFor) {
  const auto copy = [](EmulatedLane& lane, bool commits, bool waits, bool meets) {
    lane.copy_async(lane.thread * 16, kSource, 16);
    if (commits) lane.commit_copies();
    if (waits) lane.wait_copies<0>();
    if (meets) lane.barrier();
    uint32_t words[4];
    lane.load_words(words, (63 - lane.thread) * 16);
    if (words[3] != 4) throw std::logic_error("wrong word");
  };
  EXPECT_EQ(failure_of([&](EmulatedLane& lane) { copy(lane, true, true, true); }), "");
  expect_failure(failure_of([&](EmulatedLane& lane) { copy(lane, false, true, true); }),
                 "not waited for");
  expect_failure(failure_of([&](EmulatedLane& lane) { copy(lane, true, false, true); }),
                 "not waited for");
  EXPECT_NE(failure_of([&](EmulatedLane& lane) { copy(lane, true, true, false); }), "");
}

TEST(EmulatedBlock, SeesAReadOfWhatWasNeverWritten) {
  expect_failure(failure_of([](EmulatedLane& lane) {
                   uint32_t words[1];
                   lane.load_words(words, lane.thread * 4);
                 }),
                 "never written");
}

TEST(EmulatedBlock, SeesAddressesThatAreWrong) {
  const uint32_t words[4] = {};
  expect_failure(failure_of([&](EmulatedLane& lane) { lane.store_words(lane.thread * 32, words); }),
                 "beyond the end");
  expect_failure(failure_of([&](EmulatedLane& lane) { lane.store_words(lane.thread * 8, words); }),
                 "misaligned");
  expect_failure(failure_of([&](EmulatedLane& lane) {
                   lane.copy_async(lane.thread * 16, reinterpret_cast<const char*>(kSource) + 4, 8);
                 }),
                 "misaligned");
}

TEST(EmulatedBlock, SeesLanesOfAWarpPart) {
  expect_failure(failure_of([](EmulatedLane& lane) {
                   if (lane.thread % 2) lane.exchange(0, 1);
                 }),
                 "do not come");
  expect_failure(failure_of([](EmulatedLane& lane) {
                   if (lane.thread == 5) return;
                   lane.barrier();
                 }),
                 "barrier");
}

/// c + a b in every place, where a and b have one number each that is not 0.
float sum_of_product(float c, float a, float b) {
  float found = 0;
  EXPECT_EQ(failure_of([&](EmulatedLane& lane) {
              float sums[4] = {c, c, c, c};
              const bool is_first = lane.thread % 4 == 0;
              const auto left = is_first ? __builtin_bit_cast(uint32_t, a) : 0U;
              lane.multiply(TensorFloat32{}, sums, {left, left, 0, 0},
                            is_first ? __builtin_bit_cast(uint32_t, b) : 0U, 0);
              if (lane.thread == 0) found = sums[0];
            }),
            "");
  return found;
}

// As tensor cores do, a sum is cut off and not rounded to the nearest.
TEST(EmulatedBlock, RoundsSumsOfProductsTowardZero) {
  EXPECT_EQ(sum_of_product(1, 2, 3), 7);
  EXPECT_EQ(sum_of_product(1, 0x1p-12f, 0x1.8p-12f), 1);
  EXPECT_EQ(sum_of_product(-1, -0x1p-12f, 0x1.8p-12f), -1);
  EXPECT_EQ(sum_of_product(1, -0x1p-20f, 0x1p-20f), 1 - 0x1p-24f);
  EXPECT_EQ(sum_of_product(-1, 0x1p-20f, 0x1p-20f), -1 + 0x1p-24f);
  EXPECT_EQ(sum_of_product(0, 1 + 0x1p-11f, 1), 1);  // 19 bits of an operand are seen
}

TEST(EmulatedBlock, CountsBankConflicts) {
  const auto conflicts = [](int words_apart) {
    EmulatedBlock block(32, 32 * 32 * 4);
    InstructionCounts counts;
    block.run([&](int thread) {
      EmulatedLane lane(block, thread, counts);
      const uint32_t word[1] = {0};
      lane.store_words(thread * words_apart * 4, word);
    });
    return block.shared().conflicts.stores;
  };
  EXPECT_EQ(conflicts(1), 0);
  EXPECT_EQ(conflicts(2), 1);
  EXPECT_EQ(conflicts(31), 0);
  EXPECT_EQ(conflicts(32), 31);
}

// Of the blocks of a grid, which the emulation runs one after the other.
TEST(EmulatedBlock, TheLastBlockToArriveIsLastInAllItsLanes) {
  uint32_t arrived = 0;
  InstructionCounts counts;
  EmulatedBlock block(64, 0);
  for (int n = 0; n < 3; ++n) {
    std::vector<bool> last(64, n != 2);
    block.run([&](int thread) {
      EmulatedLane lane(block, thread, counts);
      last[static_cast<size_t>(thread)] = lane.is_last_block(&arrived, 3);
    });
    EXPECT_EQ(last, std::vector<bool>(64, n == 2));
  }
  EXPECT_EQ(arrived, 3u);
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
