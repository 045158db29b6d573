#include "agent/process/process_watch.h"

#include <utility>

#include "common/process/process_end.h"

namespace ddp::agent {

ProcessWatch::ProcessWatch(asio::io_context& io, UniqueFd pidfd, std::function<bool()> on_end)
    : pidfd_(io, pidfd.release()), again_(io), on_end_(std::move(on_end)) {}

std::shared_ptr<ProcessWatch> ProcessWatch::start(asio::io_context& io, UniqueFd pidfd,
                                                  std::function<bool()> on_end) {
  std::shared_ptr<ProcessWatch> watch(new ProcessWatch(io, std::move(pidfd), std::move(on_end)));
  watch->wait();
  return watch;
}

bool ProcessWatch::has_ended() { return ddp::has_ended(pidfd_.native_handle()); }

void ProcessWatch::close() {
  std::error_code ignored;
  pidfd_.close(ignored);
  again_.cancel();
}

void ProcessWatch::wait() {
  pidfd_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [weak = weak_from_this()](const std::error_code& error) {
                      const auto self = weak.lock();
                      if (!self || error || !self->pidfd_.is_open()) return;
                      if (!self->has_ended()) return self->wait();
                      self->tell();
                    });
}

void ProcessWatch::tell() {
  const auto self = shared_from_this();
  if (!on_end_() && pidfd_.is_open()) again_.after(kTracerPause, [this] { tell(); });
}

}  // namespace ddp::agent
