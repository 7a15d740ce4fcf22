// Memory larger than the machine's, of which only what is touched exists: for tensors whose
// elements lie further apart than 32 bits can count.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace aero::kernels::testing {

class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SparseMemory() { munmap(data_, bytes_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace aero::kernels::testing
