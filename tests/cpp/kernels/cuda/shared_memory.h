// A block's shared memory that knows, of each of its words, who wrote and who read it since which
// barrier, and whether a copy to it is still on its way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aero::kernels::cuda::testing {

/// Accesses that took longer than they would without bank conflicts, in extra passes through the
/// banks.
struct BankConflicts {
  int64_t matrices = 0, loads = 0, stores = 0, copies = 0;
};

class SharedMemory {
 public:
  SharedMemory(int bytes, int threads);

  void begin_block();
  /// Throws where a copy was left behind.
  void end_block() const;
  /// Everything before it comes before everything after it.
  void barrier() { ++epoch_; }

  void load(int thread, int from, uint32_t* words, int count);
  void store(int thread, int to, const uint32_t* words, int count);

  /// Copies of 16 bytes that arrive when they are waited for; until then the words are lost.
  void copy_async(int thread, int to, const void* from, int bytes);
  void commit_copies(int thread);
  void wait_copies(int thread, int missing);

  /// Extra passes of `lanes` accesses of `words` words each, in the groups the hardware takes.
  static int64_t extra_passes(const int* addresses, int lanes, int words);

  BankConflicts conflicts;

 private:
  static constexpr int kNobody = -1, kSeveral = -2;

  struct Word {
    enum State : uint8_t { kUnknown, kOnItsWay, kThere } state = kUnknown;
    int writer = kNobody;
    int reader_warp = kNobody;
    int64_t written = -1, read = -1;  ///< epochs
    uint32_t value = 0;
  };
  struct Copy {
    int to;
    const void* from;
    int bytes;
  };
  struct Copies {
    std::vector<std::vector<Copy>> groups;  ///< committed, oldest first
    std::vector<Copy> open;
  };

  Word* words_at(int address, int count, const char* what);
  void claim(Word& word, int thread, const char* what) const;
  [[noreturn]] static void fail(const std::string& what, int address);

  std::vector<Word> words_;
  std::vector<Copies> copies_;
  int64_t epoch_ = 0;
};

}  // namespace aero::kernels::cuda::testing
