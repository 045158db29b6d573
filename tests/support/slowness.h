#pragma once

namespace ddp::test {

// Roughly the factor by which a sanitizer slows everything down: for tests that need time limits or
// fixed amounts of work.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowness = 10;
#else
inline constexpr int kSlowness = 1;
#endif

}  // namespace ddp::test
