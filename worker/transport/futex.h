#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ddp::transport {

// Sleeping on a 32-bit word that other processes may share (no FUTEX_PRIVATE). Any thread.

// Returns when the word is woken or differs from `expected`, when `limit` has passed, or
// spuriously.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds limit);
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace ddp::transport
