#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <asio/execution_context.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

namespace ddp::net {

// Tells which of many descriptors can be read or written, on the thread of their io_context.
//
// Asio's own reactor makes one system call for every wait. Here descriptors stay registered in one
// level-triggered epoll, which asio watches as a single descriptor, so one call reports all that
// are ready. Registered descriptors are work for io_context::run().
class Poller : public asio::execution_context::service {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    // The descriptor can be read or written as requested. At the end of a stream and after an
    // error, both hold. May call any member of the Poller.
    virtual void on_ready(bool readable, bool writable) = 0;
  };
  struct Interest {
    bool read = false;
    bool write = false;
    bool none() const { return !read && !write; }
  };

  // The Poller of this io_context. It outlives its watchers.
  static Poller& of(asio::io_context& io);

  // From now on reports `interest` in `fd` to `watcher`, and holds `watcher`. Ends with an empty
  // `interest` or forget(), which also end reports of errors. Call one of them before you close
  // `fd`.
  void watch(int fd, std::shared_ptr<Watcher> watcher, Interest interest);
  void forget(int fd) { watch(fd, nullptr, {}); }

  // Required by asio.
  static asio::execution_context::id id;
  explicit Poller(asio::execution_context& context);

 private:
  struct Entry {
    std::shared_ptr<Watcher> watcher;
    std::uint32_t events = 0;
    std::uint32_t generation = 0;  // Counts the uses of this descriptor, to detect late reports.
  };

  void shutdown() override;
  void wait();
  void dispatch();
  void report(const epoll_event& event);

  static constexpr std::size_t kBatch = 64;

  asio::posix::stream_descriptor epoll_;
  std::vector<Entry> entries_;  // By descriptor.
  std::size_t watched_ = 0;
  bool waiting_ = false;
  std::array<epoll_event, kBatch> events_{};
};

}  // namespace ddp::net
