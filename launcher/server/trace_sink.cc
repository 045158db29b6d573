#include "launcher/server/trace_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace ddp::server {

TraceStream::TraceStream(std::shared_ptr<net::ByteStream> stream) : stream_(std::move(stream)) {
  stream_->send(kHead);
}

void TraceStream::write(std::string_view events) {
  if (stream_->queued_bytes() > kMostQueued) return stream_->close();
  stream_->send(events);
}

void TraceStream::finish() {
  stream_->send(kEnd);
  stream_->close_after_writes();
}

TraceFile::TraceFile(std::string path, std::size_t steps, OnEnd on_end)
    : path_(std::move(path)), count_(steps), on_end_(std::move(on_end)) {}

void TraceFile::write(std::string_view events) {
  if (has_ended_) return;
  if (!fd_) {
    fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd_) return end(std::generic_category().message(errno));
    put(kHead);
  }
  put(events);
  count_.take(events);
  if (count_.is_reached()) finish();
}

void TraceFile::finish() {
  if (has_ended_) return;
  if (fd_) put(kEnd);
  end(fd_ ? "" : "nothing was traced");
}

void TraceFile::put(std::string_view bytes) {
  while (!has_ended_ && !bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return end(std::generic_category().message(errno));
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void TraceFile::end(const std::string& error) {
  if (std::exchange(has_ended_, true)) return;
  fd_.reset();
  if (on_end_) on_end_(error);
}

}  // namespace ddp::server
