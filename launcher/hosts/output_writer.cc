#include "launcher/hosts/output_writer.h"

#include <string_view>
#include <utility>

#include <asio/post.hpp>

#include "common/process/all_signals_blocked.h"
#include "common/process/write_file.h"
#include "common/terminal/terminal.h"

namespace ddp::hosts {

OutputWriter::OutputWriter(asio::io_context& io, int fd, std::function<void()> on_room)
    : io_(io), fd_(fd), on_room_(std::move(on_room)) {
  const AllSignalsBlocked blocked;  // The event loop gets them.
  thread_ = std::thread([this] { run(); });
}

OutputWriter::~OutputWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    status_.clear();
  }
  changed_.notify_one();
  thread_.join();
}

void OutputWriter::write(std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    queue_ += bytes;
    if (queue_.size() + writing_ > kFullBytes) was_full_ = true;
  }
  changed_.notify_one();
}

bool OutputWriter::full() const {
  const std::lock_guard lock(mutex_);
  return was_full_;
}

void OutputWriter::show_status(std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    status_ = text;
  }
  changed_.notify_one();
}

// The bytes to write so that the status is shown below `bytes`.
std::string OutputWriter::framed(std::string bytes, const std::string& status) {
  if (!bytes.empty()) line_begins_ = bytes.back() == '\n';
  if (status_shown_) bytes.insert(0, terminal::kEraseLine);
  status_shown_ = line_begins_ && !status.empty();
  if (status_shown_) bytes += terminal::cut_to_width(fd_, status);
  return bytes;
}

void OutputWriter::run() {
  bool is_gone = false;  // The reader.
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty() || status_ != drawn_; });
    if (queue_.empty() && status_ == drawn_) return;
    std::string taken = std::exchange(queue_, {});
    const std::string status = drawn_ = status_;
    writing_ = taken.size();
    lock.unlock();
    const std::string text = framed(std::move(taken), status);
    std::string_view rest = text;
    if (!is_gone) is_gone = write_all(fd_, rest) != 0;
    lock.lock();
    writing_ = 0;
    if (!queue_.empty() || !std::exchange(was_full_, false)) continue;
    asio::post(io_, [this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) on_room_();
    });
  }
}

}  // namespace ddp::hosts
