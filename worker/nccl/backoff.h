#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace ddp::nccl {

// Pauses between polls of something that is usually ready at once: yields to other threads at
// first, then sleeps for longer and longer, up to `longest`.
class Backoff {
 public:
  explicit Backoff(std::chrono::microseconds longest = std::chrono::microseconds(200))
      : longest_(longest) {}

  void pause() {
    if (++turns_ <= kYields) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, longest_);
  }

 private:
  static constexpr int kYields = 50;

  std::chrono::microseconds longest_;
  std::chrono::microseconds sleep_{10};
  int turns_ = 0;
};

}  // namespace ddp::nccl
