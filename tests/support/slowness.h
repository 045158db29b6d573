#pragma once

namespace ddp::test {

// How much longer everything takes than without a sanitizer, roughly: for amounts of work and for
// limits of time that a test has to have.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowness = 10;
#else
inline constexpr int kSlowness = 1;
#endif

}  // namespace ddp::test
