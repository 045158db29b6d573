#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <asio/ip/tcp.hpp>

#include "common/base/host_port.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/net/any_stream.h"
#include "common/net/poller.h"
#include "common/net/socket_options.h"
#include "common/net/stream_filter.h"
#include "common/net/timer.h"

namespace ddp::net {

// A connected TCP socket. Bytes go out through a bounded queue and come in to a handler, all on the
// thread that runs its io_context. Pending operations keep it alive until it is closed. An idle
// stream holds no buffer, because one thread has thousands of them.
class ByteStream final : public Stream,
                         public Poller::Watcher,
                         public std::enable_shared_from_this<ByteStream> {
 public:
  struct Options {
    StreamOptions socket;
    std::size_t max_queued_bytes = 64u << 20;
  };

  static std::shared_ptr<ByteStream> create(asio::ip::tcp::socket socket, const Options& options);

  void set_options(const Options& options);
  void set_handler(std::shared_ptr<Handler> handler) override;
  // From now on `filter` lies between the socket and the handler. `received` was already read from
  // the socket and goes through the filter first.
  void set_filter(std::unique_ptr<StreamFilter> filter, std::string_view received);
  // Queues what the kernel does not take at once.
  void send(std::string_view bytes) override;
  void pause_reading() override;
  void resume_reading() override;
  // Closes when the peer has closed or 2 s after it last took something. If it closed at once with
  // bytes of the peer unread, the kernel would reset the connection, and the peer could lose the
  // last bytes.
  void close_after_writes() override;
  void close() override;

  bool is_open() const override { return !ended_ && !draining_; }
  std::size_t queued_bytes() const override { return writing_.size() - written_ + pending_.size(); }
  void limit_queue(std::size_t bytes) override { max_queued_bytes_ = bytes; }
  // Numeric, without port; also after the end.
  std::string remote_address() const { return address_text(remote_.address()); }
  // ADDRESS:PORT.
  std::string remote() const override {
    return host_and_port(address_text(remote_.address()), remote_.port());
  }
  asio::io_context& io() override { return io_; }
  int descriptor() const { return socket_.get(); }

 private:
  ByteStream(asio::io_context& io, asio::ip::tcp::socket socket, const Options& options);

  void on_ready(bool readable, bool writable) override;
  void watch();
  void read_some();
  void deliver(std::string_view from_socket);
  void give(std::string_view bytes);
  void queue(std::string_view to_socket);
  std::size_t write_now(std::string_view bytes);
  void write_some();
  void drained();
  void limit_draining();
  void end(Error why);
  bool close_socket();

  asio::io_context& io_;
  UniqueFd socket_;
  StreamOptions socket_options_;
  std::optional<Timer> linger_;  // Once draining.
  std::size_t max_queued_bytes_ = 0;
  std::shared_ptr<Handler> handler_;
  std::unique_ptr<StreamFilter> filter_;
  std::unique_ptr<Error> refusal_;  // The filter's error, while the peer is being told.
  asio::ip::tcp::endpoint remote_;
  std::string writing_;            // Is being written to the kernel, piece by piece.
  std::size_t written_ = 0;        // Invariant: written_ <= writing_.size().
  std::string pending_;            // Follows writing_.
  bool waiting_writable_ = false;  // The kernel took less than was offered.
  bool paused_ = true;             // No handler yet, or pause_reading().
  bool write_broken_ = false;      // The kernel refused a write; the reading side finds out why.
  bool draining_ = false;          // close_after_writes() was called.
  bool ended_ = false;             // The socket is closed.
};

}  // namespace ddp::net
