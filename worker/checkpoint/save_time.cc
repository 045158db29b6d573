#include "worker/checkpoint/save_time.h"

#include <algorithm>
#include <thread>

namespace ddp::checkpoint {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): durations.

constexpr std::chrono::nanoseconds kWaitPiece = 50ms;
// A limited writer writes about this often, so that others see its progress by the sizes.
constexpr std::uint64_t kPiecesPerSecond = 20;
constexpr std::size_t kSmallestPiece = 4096;

}  // namespace

SaveTime::SaveTime(const WriterOptions& options, std::uint64_t bytes_per_second)
    : options_(&options), rate_(bytes_per_second), begin_(now()), next_(begin_) {}

Result<void> SaveTime::alive() const {
  if (!options_->cancelled || !options_->cancelled()) return {};
  return make_error(Errc::kAborted, "the save was cancelled");
}

Result<void> SaveTime::wait(std::chrono::nanoseconds time) const {
  while (true) {
    if (auto still = alive(); !still) return still;
    if (time <= 0ns) return {};
    const auto piece = std::min(time, kWaitPiece);
    if (options_->sleep) {
      options_->sleep(piece);
    } else {
      std::this_thread::sleep_for(piece);
    }
    time -= piece;
  }
}

WritePace SaveTime::pace() {
  WritePace pace;
  if (rate_ > 0) {
    pace.piece = std::clamp<std::size_t>(rate_ / kPiecesPerSecond, kSmallestPiece, kWritePiece);
  }
  pace.before = [this](std::size_t bytes) { return take(bytes); };
  return pace;
}

Result<void> SaveTime::take(std::size_t bytes) {
  if (rate_ == 0) return alive();
  // Do not make up for lost time (a slow disk) by a burst.
  next_ = std::max(next_, now());
  if (auto waited = wait(next_ - now()); !waited) return waited;
  next_ += std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(rate_)));
  return {};
}

}  // namespace ddp::checkpoint
