#include "common/net/poller.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/check.h"

namespace ddp::net {
namespace {

// After that many full batches, timers and other descriptors of the io_context get their turn.
constexpr int kBatchesPerTurn = 4;
// After a batch with fewer events than this, more are unlikely to be ready already.
constexpr int kWorthAnotherLook = 4;

std::uint32_t events_of(Poller::Interest interest) {
  return (interest.read ? std::uint32_t{EPOLLIN} : 0) |
         (interest.write ? std::uint32_t{EPOLLOUT} : 0);
}

int make_epoll() {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  return fd;
}

}  // namespace

asio::execution_context::id Poller::id;

Poller::Poller(asio::execution_context& context)
    : service(context), epoll_(static_cast<asio::io_context&>(context), make_epoll()) {}

Poller& Poller::of(asio::io_context& io) { return asio::use_service<Poller>(io); }

void Poller::shutdown() {
  // Destroying a watcher may destroy others, whose destructors call forget().
  std::vector<Entry> entries;
  entries.swap(entries_);
  watched_ = 0;
}

void Poller::watch(int fd, std::shared_ptr<Watcher> watcher, Interest interest) {
  const auto index = static_cast<std::size_t>(fd);
  if (index >= entries_.size()) {
    if (interest.none()) return;
    entries_.resize(index + 1);
  }
  Entry& entry = entries_[index];
  const std::uint32_t events = events_of(interest);
  if (events == entry.events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = std::uint64_t{entry.generation} << 32 | static_cast<std::uint32_t>(fd);
  if (entry.events == 0) {
    DDP_CHECK(::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, fd, &event) == 0,
              "epoll add {}: {}", fd, std::generic_category().message(errno));
    entry.watcher = std::move(watcher);
    ++watched_;
  } else if (events == 0) {
    ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
    ++entry.generation;
    --watched_;
  } else {
    ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, fd, &event);
  }
  entry.events = events;
  if (watched_ == 0) {
    epoll_.cancel();  // So that run() can return.
  } else {
    wait();
  }
  // Released last: it may hold the only reference to the caller.
  if (events == 0) const std::shared_ptr<Watcher> gone = std::exchange(entry.watcher, nullptr);
}

void Poller::wait() {
  if (waiting_) return;
  waiting_ = true;
  epoll_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [this](const std::error_code& error) {
                      if (!error) dispatch();
                      waiting_ = false;
                      if (watched_ > 0) wait();
                    });
}

void Poller::dispatch() {
  for (int batch = 0; batch < kBatchesPerTurn; ++batch) {
    const int count = ::epoll_wait(epoll_.native_handle(), events_.data(), kBatch, 0);
    for (int i = 0; i < count; ++i) report(events_[static_cast<std::size_t>(i)]);
    if (count < kWorthAnotherLook) return;
  }
}

void Poller::report(const epoll_event& event) {
  const auto index = static_cast<std::size_t>(event.data.u64 & 0xFFFFFFFF);
  const auto generation = static_cast<std::uint32_t>(event.data.u64 >> 32);
  const Entry& entry = entries_[index];
  // An earlier report of this batch may have ended the watch, and the descriptor may be in use
  // again.
  if (entry.events == 0 || entry.generation != generation) return;
  const std::shared_ptr<Watcher> watcher = entry.watcher;
  const bool ended = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
  const bool readable = (event.events & EPOLLIN) != 0 || ended;
  const bool writable = (event.events & EPOLLOUT) != 0 || ended;
  watcher->on_ready(readable && (entry.events & EPOLLIN) != 0,
                    writable && (entry.events & EPOLLOUT) != 0);
}

}  // namespace ddp::net
