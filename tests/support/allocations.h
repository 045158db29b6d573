#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <execinfo.h>

// Counts all allocations of a process, on all of its threads and in all of its libraries: it
// replaces malloc and its relatives, which everything else calls. Include it in one source of a
// program. With a sanitizer, which has its own malloc, kCounting is false and nothing is counted.

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
inline constexpr long kStacks = 1L << 16;

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

// Starts counting.
inline void arm() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // The first one loads a library.
  count = 0;
  armed = true;
}

// Stops counting and returns the number of allocations.
inline long disarm() {
  armed = false;
  return count;
}

// Prints the distinct stacks that were kept, with their counts, the rarest first, for addr2line
// -Cfe PROGRAM. It prints only stacks with a frame of the program itself among the innermost
// frames, to leave out what a library allocates for its own purposes.
inline void print_own() {
  constexpr int kInnermost = 9;
  constexpr std::size_t kMostLines = 60;
  std::map<std::vector<void*>, long> numbers;
  for (long number = 0; number < std::min(count.load(), kStacks); ++number) {
    const Stack& stack = stacks[static_cast<std::size_t>(number)];
    ++numbers[{stack.frames.begin(), stack.frames.begin() + stack.size}];
  }
  std::vector<std::pair<long, const std::vector<void*>*>> rarest;
  for (const auto& [frames, times] : numbers) rarest.emplace_back(times, &frames);
  std::sort(rarest.begin(), rarest.end());
  Dl_info program{};
  ::dladdr(reinterpret_cast<void*>(&print_own), &program);
  std::size_t printed = 0;
  for (const auto& [times, frames] : rarest) {
    bool own = false;
    std::string line;
    for (std::size_t i = 2; i < frames->size(); ++i) {
      Dl_info info{};
      auto* const frame = static_cast<char*>((*frames)[i]);
      if (::dladdr(frame, &info) == 0) continue;
      char text[64] = "";
      if (info.dli_fbase == program.dli_fbase) {
        own = own || i < kInnermost;
        std::snprintf(text, sizeof(text), " 0x%tx", frame - static_cast<char*>(info.dli_fbase));
      } else if (info.dli_sname != nullptr) {
        std::snprintf(text, sizeof(text), " %.40s", info.dli_sname);
      }
      line += text;
    }
    if (!own) continue;
    std::printf("%ld allocations:%s\n", times, line.c_str());
    if (++printed == kMostLines) break;
  }
}

}  // namespace ddp::test::allocations

#if DDP_TEST_COUNTS_ALLOCATIONS
extern "C" {
// glibc's own names of the replaced functions.
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
