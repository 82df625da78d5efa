// Memory of an executor: aligned, on huge pages where the system offers them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bitwitness {

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char[], FreeMemory>;

// `bytes` bytes, uninitialised, aligned to a cache line; null for none. Large blocks ask for huge pages: packing walks
// matrices by columns, and small pages then miss the address cache at every step. Throws std::bad_alloc.
inline Memory allocate(int64_t bytes) {
  constexpr size_t kLine = 64, kHugePage = size_t{2} << 20;
  if (bytes == 0) return nullptr;
  const size_t alignment = static_cast<size_t>(bytes) >= kHugePage ? kHugePage : kLine;
  const size_t size = (static_cast<size_t>(bytes) + alignment - 1) / alignment * alignment;
  Memory memory(static_cast<char*>(std::aligned_alloc(alignment, size)));
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(memory.get(), size, MADV_HUGEPAGE);  // a wish: failing changes nothing
#endif
  return memory;
}

}  // namespace bitwitness
