#include "tests/cpp/kernels/cuda/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace aero::kernels::cuda::testing {

SharedMemory::SharedMemory(int bytes, int threads)
    : words_(static_cast<size_t>(bytes / 4)), copies_(static_cast<size_t>(threads)) {}

void SharedMemory::fail(const std::string& what, int address) {
  throw std::logic_error(what + " at shared byte " + std::to_string(address));
}

void SharedMemory::begin_block() {
  std::fill(words_.begin(), words_.end(), Word{});
  for (Copies& copies : copies_) copies = {};
  epoch_ = 0;
}

void SharedMemory::end_block() const {
  for (const Copies& copies : copies_) {
    bool left = !copies.open.empty();
    for (const auto& group : copies.groups) left = left || !group.empty();
    if (left) throw std::logic_error("a block ended before its copies arrived");
  }
}

SharedMemory::Word* SharedMemory::words_at(int address, int count, const char* what) {
  if (address < 0 || address % (4 * count) != 0)
    fail(std::string(what) + " of " + std::to_string(count) + " words is misaligned", address);
  if (address + 4 * count > static_cast<int>(4 * words_.size()))
    fail(std::string(what) + " beyond the end", address);
  return &words_[static_cast<size_t>(address / 4)];
}

/// `thread` is about to overwrite the word.
void SharedMemory::claim(Word& word, int thread, const char* what) const {
  const auto address = static_cast<int>(4 * (&word - words_.data()));
  if (word.state == Word::kOnItsWay) fail(std::string(what) + " over a copy on its way", address);
  if (word.written == epoch_ && word.writer != thread)
    fail(std::string(what) + " over a word that another thread wrote since the barrier", address);
  // A warp instruction is done reading when the next one of its warp begins.
  if (word.read == epoch_ && word.reader_warp != thread / 32)
    fail(std::string(what) + " over a word that another warp reads since the barrier", address);
  word.writer = thread;
  word.written = epoch_;
}

void SharedMemory::load(int thread, int from, uint32_t* words, int count) {
  Word* cells = words_at(from, count, "load");
  for (int n = 0; n < count; ++n) {
    Word& word = cells[n];
    if (word.state == Word::kOnItsWay) fail("load of a copy that was not waited for", from);
    if (word.state == Word::kUnknown) fail("load of what was never written", from);
    if (word.written == epoch_ && word.writer != thread)
      fail("load of what another thread wrote since the barrier", from);
    const int warp = thread / 32;
    word.reader_warp =
        word.read == epoch_ && word.reader_warp != warp ? static_cast<int>(kSeveral) : warp;
    word.read = epoch_;
    words[n] = word.value;
  }
}

void SharedMemory::store(int thread, int to, const uint32_t* words, int count) {
  Word* cells = words_at(to, count, "store");
  for (int n = 0; n < count; ++n) {
    claim(cells[n], thread, "store");
    cells[n].state = Word::kThere;
    cells[n].value = words[n];
  }
}

void SharedMemory::copy_async(int thread, int to, const void* from, int bytes) {
  if (bytes < 0 || bytes > 16) fail("copy of " + std::to_string(bytes) + " bytes", to);
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("copy from a misaligned address", to);
  Word* cells = words_at(to, 4, "copy");
  for (int n = 0; n < 4; ++n) {
    claim(cells[n], thread, "copy");
    cells[n].state = Word::kOnItsWay;
  }
  copies_[static_cast<size_t>(thread)].open.push_back({to, from, bytes});
}

void SharedMemory::commit_copies(int thread) {
  Copies& copies = copies_[static_cast<size_t>(thread)];
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}

void SharedMemory::wait_copies(int thread, int missing) {
  auto& groups = copies_[static_cast<size_t>(thread)].groups;
  while (static_cast<int>(groups.size()) > missing) {
    for (const Copy& copy : groups.front()) {
      uint32_t values[4] = {};
      if (copy.bytes > 0) std::memcpy(values, copy.from, static_cast<size_t>(copy.bytes));
      Word* cells = words_at(copy.to, 4, "copy");
      for (int n = 0; n < 4; ++n) {
        cells[n].state = Word::kThere;
        cells[n].value = values[n];
        cells[n].writer = thread;
        cells[n].written = epoch_;
      }
    }
    groups.erase(groups.begin());
  }
}

int64_t SharedMemory::extra_passes(const int* addresses, int lanes, int words) {
  // 128 bytes are served at a time: all lanes with a word each, or 8 with four.
  const int group = 32 / words;
  int64_t extra = 0;
  for (int first = 0; first < lanes; first += group) {
    int seen[32][32], count[32] = {}, passes = 1;
    for (int n = 0; n < group * words; ++n) {
      const int word = addresses[first + n / words] / 4 + n % words, bank = word % 32;
      const int* end = seen[bank] + count[bank];
      if (std::find(static_cast<const int*>(seen[bank]), end, word) != end) continue;
      seen[bank][count[bank]++] = word;
      passes = std::max(passes, count[bank]);
    }
    extra += passes - 1;
  }
  return extra;
}

}  // namespace aero::kernels::cuda::testing
