#include "agent/shell/coordinator_feed.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <utility>

namespace ddp::agent {

CoordinatorFeed::CoordinatorFeed(asio::io_context& io, UniqueFd fd, MovedCallback on_moved)
    : pipe_(io, fd.release()), on_moved_(std::move(on_moved)) {
  pipe_.non_blocking(true);
  wait();
}

void CoordinatorFeed::wait() {
  pipe_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
    if (!error) read();
  });
}

void CoordinatorFeed::read() {
  constexpr std::size_t kChunk = 4096;
  const std::size_t before = text_.size();
  text_.resize(before + kChunk);
  const ssize_t size = ::read(pipe_.native_handle(), text_.data() + before, kChunk);
  text_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  if (size == 0) return;
  wait();
  take_lines();
}

void CoordinatorFeed::take_lines() {
  const auto end = text_.rfind('\n');
  if (end == std::string::npos) return;
  const std::string lines = text_.substr(0, end);
  text_.erase(0, end + 1);
  std::string_view line = lines;
  line.remove_prefix(line.rfind('\n') + 1);  // 0 if there is only one line.
  const auto space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return;
  const std::string_view digits = line.substr(space + 1);
  int port = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || rest != digits.data() + digits.size() || port < 1 || port > 65535)
    return;
  on_moved_(std::string(line.substr(0, space)), port);
}

}  // namespace ddp::agent
