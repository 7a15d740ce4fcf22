// Memory whose neighbourhood is forbidden, to see a kernel that reads or writes beside its tensors.
//
// The address sanitizer sees what compiled code does, but masked and gathering instructions it does
// not know, and no access that jumps far. A page that may not be touched stops all of them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <unordered_map>
#include <vector>

namespace aero::kernels::testing {

/// Where buffers lie.
enum class Placement : uint8_t {
  kHeap,             ///< the allocator's choice, exactly as large as needed
  kBeforeForbidden,  ///< the last byte before a forbidden page
  kAfterForbidden,   ///< the first byte after a forbidden page
};

inline Placement current_placement = Placement::kHeap;

/// Places all buffers allocated while it lives.
class ScopedPlacement {
 public:
  explicit ScopedPlacement(Placement placement) { current_placement = placement; }
  ~ScopedPlacement() { current_placement = Placement::kHeap; }
  ScopedPlacement(const ScopedPlacement&) = delete;
  ScopedPlacement& operator=(const ScopedPlacement&) = delete;
};

/// Pages with a forbidden one on each side.
struct GuardedPages {
  void* base;
  size_t bytes;  ///< with both forbidden pages
};

inline std::unordered_map<void*, GuardedPages>& guarded_pages() {
  static std::unordered_map<void*, GuardedPages> pages;
  return pages;
}

inline void* allocate_guarded(size_t bytes, size_t alignment) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inside = (bytes + page - 1) / page * page, total = inside + 2 * page;
  void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  char* first = static_cast<char*>(base) + page;
  if (mprotect(base, page, PROT_NONE) || mprotect(first + inside, page, PROT_NONE))
    throw std::bad_alloc();
  const bool at_end = current_placement == Placement::kBeforeForbidden;
  void* data = at_end ? first + (inside - bytes) / alignment * alignment : first;
  guarded_pages()[data] = {base, total};
  return data;
}

/// Allocates as current_placement says.
template <class T, size_t Alignment = alignof(T)>
struct PlacedAllocator {
  using value_type = T;
  template <class Other>
  struct rebind {
    using other = PlacedAllocator<Other, Alignment>;
  };

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (current_placement != Placement::kHeap)
      return static_cast<T*>(allocate_guarded(bytes, Alignment));
    if constexpr (kIsAligned) return static_cast<T*>(::operator new(bytes));
    return static_cast<T*>(::operator new(bytes, std::align_val_t(Alignment)));
  }
  void deallocate(T* data, size_t) {
    const auto found = guarded_pages().find(data);
    if (found != guarded_pages().end()) {
      munmap(found->second.base, found->second.bytes);
      guarded_pages().erase(found);
    } else if constexpr (kIsAligned) {
      ::operator delete(data);
    } else {
      ::operator delete(data, std::align_val_t(Alignment));
    }
  }
  bool operator==(const PlacedAllocator&) const { return true; }

 private:
  static constexpr bool kIsAligned = Alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__;
};

/// A buffer that a kernel is given.
template <class T, size_t Alignment = alignof(T)>
using Buffer = std::vector<T, PlacedAllocator<T, Alignment>>;

}  // namespace aero::kernels::testing
