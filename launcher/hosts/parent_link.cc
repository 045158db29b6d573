#include "launcher/hosts/parent_link.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include <stdlib.h>

#include "common/process/spawn_settings.h"
#include "common/process/write_file.h"

namespace ddp::hosts {
namespace {

Error system_error(const char* what) {
  return make_error(Errc::kIo, "{}: {}", what, std::generic_category().message(errno));
}

}  // namespace

bool ParentLink::is_wanted(const std::vector<std::string>& arguments) {
  return arguments.size() == 1 && arguments[0] == kStartedFlag;
}

Result<std::unique_ptr<ParentLink>> ParentLink::open() {
  UniqueFd input(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, kFirstOwnFd));
  if (!input) return system_error("standard input");
  // Workers must not read this process's input.
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing || ::dup2(nothing.get(), STDIN_FILENO) < 0) return system_error("/dev/null");
  std::unique_ptr<ParentLink> link(new ParentLink(std::move(input)));
  auto order = link->receive_order();
  if (!order) return order.error();
  link->order_ = std::move(*order);
  return link;
}

Result<NodeOrder> ParentLink::receive_order() {
  while (true) {
    const auto payload = decoder_.next();
    if (!payload) return payload.error();
    if (*payload) return decode_order(**payload);
    std::array<char, 4096> buffer;
    const ssize_t count = ::read(input_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("standard input");
    if (count == 0) {
      return make_error(Errc::kPeerLost,
                        "{} is for ddp-runs that another ddp-run starts, and none has sent an "
                        "order; write --hosts a,b",
                        kStartedFlag);
    }
    decoder_.append(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  }
}

void ParentLink::report(const NodeReport& report) const {
  const std::string line = encode_line(order_.mark, report) + "\n";
  std::string_view rest = line;
  write_all(STDOUT_FILENO, rest);  // If the launcher is gone, the event loop notices it.
}

void ParentLink::watch(asio::io_context& io, Events events) {
  events_ = std::move(events);
  stream_ = std::make_unique<asio::posix::stream_descriptor>(io, input_.release());
  std::error_code ignored;
  stream_->non_blocking(true, ignored);
  take_frames();
  read_later();
}

void ParentLink::read_later() {
  stream_->async_wait(
      asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
        if (error) return;
        std::array<char, 4096> buffer;
        const ssize_t count = ::read(stream_->native_handle(), buffer.data(), buffer.size());
        if (count > 0) {
          decoder_.append(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
          take_frames();
        }
        if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return read_later();
        events_.on_hang_up();
      });
}

void ParentLink::take_frames() {
  while (true) {
    const auto payload = decoder_.next();
    if (!payload || !*payload) return;
    if (const auto signal = decode_signal(**payload)) events_.on_signal(*signal);
  }
}

Result<void> take_surroundings(const NodeOrder& order) {
  for (const auto& [name, value] : order.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  if (::chdir(order.folder.c_str()) != 0) {
    return make_error(
        errno == ENOENT ? Errc::kNotFound : Errc::kIo,
        "cannot enter the folder {} there: {}; the job's folder must exist on every host",
        order.folder, std::generic_category().message(errno));
  }
  ::setenv("PWD", order.folder.c_str(), 1);
  return {};
}

}  // namespace ddp::hosts
