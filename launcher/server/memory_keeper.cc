#include "launcher/server/memory_keeper.h"

#include <algorithm>

#include <malloc.h>

namespace ddp::server {
namespace {

constexpr Duration kInterval{2'000};
constexpr std::size_t kWorthwhileBytes = 2u << 20;
// Larger pieces go back to the system at once. Without a limit set, glibc raises it to the largest
// piece that it has seen, and puts what is smaller where it cannot be given back.
constexpr int kLargePiece = 1 << 20;

}  // namespace

MemoryKeeper::MemoryKeeper(asio::io_context& io) : timer_(io) {
  ::mallopt(M_MMAP_THRESHOLD, kLargePiece);
  ::mallopt(M_TRIM_THRESHOLD, kLargePiece);
  look_later();
}

void MemoryKeeper::look_later() {
  timer_.after(kInterval, [this] {
    const std::size_t free = ::mallinfo2().fordblks;
    given_back_ = std::min(given_back_, free);
    if (free - given_back_ >= kWorthwhileBytes) {
      ::malloc_trim(0);
      given_back_ = ::mallinfo2().fordblks;
    }
    look_later();
  });
}

}  // namespace ddp::server
