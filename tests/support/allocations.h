#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include <dlfcn.h>
#include <execinfo.h>

// Counts what a whole process allocates, on all of its threads and in all of its libraries: malloc
// and its relatives are replaced, and everything else calls them. Included by one source of a
// program. Not with a sanitizer, which has its own malloc: kCounting is false then.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DDP_TEST_COUNTS_ALLOCATIONS 0
#else
#define DDP_TEST_COUNTS_ALLOCATIONS 1
#endif

namespace ddp::test::allocations {

inline constexpr bool kCounting = DDP_TEST_COUNTS_ALLOCATIONS != 0;

// The calls of one allocation, innermost first.
struct Stack {
  static constexpr int kFrames = 24;
  std::array<void*, kFrames> frames;
  int size = 0;
};
inline constexpr long kStacks = 4096;

inline std::atomic<bool> armed = false;
inline std::atomic<long> count = 0;
inline std::array<Stack, kStacks> stacks;
inline thread_local bool inside = false;

inline void note() {
  if (!armed.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  const long number = count.fetch_add(1);
  if (number < kStacks) {
    Stack& stack = stacks[static_cast<std::size_t>(number)];
    stack.size = ::backtrace(stack.frames.data(), Stack::kFrames);
  }
  inside = false;
}

// Begins to count.
inline void arm() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // The first one loads a library.
  count = 0;
  armed = true;
}

// Ends it, and gives how many there were.
inline long disarm() {
  armed = false;
  return count;
}

// Prints the stacks of what was counted, as far as they were kept, for addr2line -Cfe PROGRAM:
// those with a frame of the program itself among the innermost ones, which are few where a library
// allocates for its own sake.
inline void print_own(int among = 9) {
  Dl_info program{};
  ::dladdr(reinterpret_cast<void*>(&print_own), &program);
  const long kept = std::min(count.load(), kStacks);
  for (long number = 0; number < kept; ++number) {
    const Stack& stack = stacks[static_cast<std::size_t>(number)];
    bool own = false;
    char line[64 * Stack::kFrames] = "";
    std::size_t end = 0;
    for (int i = 2; i < stack.size; ++i) {
      Dl_info info{};
      auto* const frame = static_cast<char*>(stack.frames[static_cast<std::size_t>(i)]);
      const bool known = ::dladdr(frame, &info) != 0;
      if (known && info.dli_fbase == program.dli_fbase) {
        own = own || i < among;
        end += static_cast<std::size_t>(std::snprintf(line + end, sizeof(line) - end, " 0x%tx",
                                                      frame - static_cast<char*>(info.dli_fbase)));
      } else if (known && info.dli_sname != nullptr) {
        end += static_cast<std::size_t>(
            std::snprintf(line + end, sizeof(line) - end, " %.40s", info.dli_sname));
      }
    }
    if (own) std::printf("allocation %ld:%s\n", number, line);
  }
}

}  // namespace ddp::test::allocations

#if DDP_TEST_COUNTS_ALLOCATIONS
extern "C" {
// glibc's own names of what is replaced.
void* __libc_malloc(std::size_t bytes);                           // NOLINT
void* __libc_calloc(std::size_t count, std::size_t bytes);        // NOLINT
void* __libc_realloc(void* memory, std::size_t bytes);            // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT

void* malloc(std::size_t bytes) {
  ddp::test::allocations::note();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  ddp::test::allocations::note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  ddp::test::allocations::note();
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  ddp::test::allocations::note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ddp::test::allocations::note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  ddp::test::allocations::note();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;
}
}
#endif
