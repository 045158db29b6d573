#include "launcher/server/memory_keeper.h"

#include <algorithm>

#include <malloc.h>

namespace ddp::server {
namespace {

constexpr Duration kInterval{2'000};
// The C library counts its free pieces one by one, which takes tens of milliseconds for millions of
// them. So the pause between two looks is this many times as long as a look took.
constexpr int kPause = 1'000;
constexpr std::size_t kWorthwhileBytes = 1u << 20;
// Pieces larger than this go back to the system at once. If the limit is not set, glibc raises it
// to the largest piece that it has seen, and puts smaller ones where they cannot be given back.
constexpr int kLargePiece = 1 << 20;

}  // namespace

MemoryKeeper::MemoryKeeper(asio::io_context& io) : timer_(io) {
  ::mallopt(M_MMAP_THRESHOLD, kLargePiece);
  ::mallopt(M_TRIM_THRESHOLD, kLargePiece);
  look_after(kInterval);
}

void MemoryKeeper::look_after(Duration time) {
  timer_.after(time, [this] {
    const TimePoint began = Clock::now();
    const std::size_t free = ::mallinfo2().fordblks;
    given_back_ = std::min(given_back_, free);
    if (free - given_back_ >= kWorthwhileBytes) {
      ::malloc_trim(0);
      given_back_ = ::mallinfo2().fordblks;
    }
    const auto taken = std::chrono::duration_cast<Duration>((Clock::now() - began) * kPause);
    look_after(std::max(kInterval, taken));
  });
}

}  // namespace ddp::server
