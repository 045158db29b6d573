#pragma once

namespace ddp::test {

// Whether the test and the programs that it starts run under a sanitizer. A sanitizer has an
// allocator of its own, keeps freed memory for a while, and multiplies the memory of a process.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// ThreadSanitizer runs the handler of a signal when the thread next calls into it, not at once.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

// Roughly the factor by which it slows everything down: for tests that need time limits or fixed
// amounts of work.
inline constexpr int kSlowness = kSanitized ? 10 : 1;

}  // namespace ddp::test
