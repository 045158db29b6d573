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
// Asio's own reactor asks the kernel once for every wait. Here descriptors stay registered in one
// level-triggered epoll, which asio watches as a single descriptor: whatever is ready costs one
// call together. Registered descriptors are work for io_context::run().
class Poller : public asio::execution_context::service {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    // What was asked for is possible; the end of a stream and errors make both so. It may call any
    // member of the Poller.
    virtual void on_ready(bool readable, bool writable) = 0;
  };
  struct Interest {
    bool read = false;
    bool write = false;
    bool none() const { return !read && !write; }
  };

  // The one of this io_context, which outlives what it watches for.
  static Poller& of(asio::io_context& io);

  // Asks from now on for `interest`, and holds `watcher` until it is nothing (which also ends the
  // reports of errors) or forget() is called. Before `fd` is closed one of them must be.
  void watch(int fd, std::shared_ptr<Watcher> watcher, Interest interest);
  void forget(int fd) { watch(fd, nullptr, {}); }

  // For asio.
  static asio::execution_context::id id;
  explicit Poller(asio::execution_context& context);

 private:
  struct Entry {
    std::shared_ptr<Watcher> watcher;
    std::uint32_t events = 0;
    std::uint32_t generation = 0;  // Of this number's use, for what is reported late.
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
