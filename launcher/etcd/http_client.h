#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/tls_files.h"
#include "common/net/timer.h"

namespace ddp::etcd {

struct HttpRequest {
  std::string url;
  std::string body;   // JSON, sent by POST.
  Duration limit{0};  // For the whole request; 0: no limit once it is connected.
};

struct HttpAnswer {
  long status = 0;
  std::string body;           // Empty if the bytes went to on_bytes.
  std::string local_address;  // Numeric: this machine's end of the connection.
};

// HTTP requests with libcurl, without a thread of its own: the event loop watches libcurl's sockets
// and time limits. Everything, callbacks included, happens on the thread of `io`. Callbacks come
// from the event loop, never from inside a call, and may destroy this object. Connections are kept
// open for later requests.
class HttpClient {
 public:
  using RequestId = std::uint64_t;
  using BytesCallback = std::function<void(std::string_view bytes)>;
  // kTimeout, kPeerLost (no connection, or it broke), kInvalidArgument (certificates do not fit).
  using EndCallback = std::function<void(Result<HttpAnswer>)>;

  // Without `tls.ca`, the system's certificates count. kNotFound if libcurl is not installed.
  static Result<std::unique_ptr<HttpClient>> create(asio::io_context& io,
                                                    const config::TlsFiles& tls);
  ~HttpClient();  // Cancels everything.
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `on_bytes`, if set, gets the answer's bytes as they arrive.
  RequestId post(const HttpRequest& request, BytesCallback on_bytes, EndCallback on_end);
  // No callback follows. Does nothing if the request has ended.
  void cancel(RequestId id);

 private:
  struct Curl;  // What needs libcurl's header.
  struct Transfer;
  class SocketWatcher;

  HttpClient(asio::io_context& io, config::TlsFiles tls, std::unique_ptr<Curl> curl);
  void watch_socket(int fd, bool read, bool write);
  void set_timer(long ms);
  void act(int fd, int events);
  void deliver();
  void end(RequestId id, int code);

  asio::io_context& io_;
  const config::TlsFiles tls_;
  std::unique_ptr<Curl> curl_;
  net::Timer timer_;
  std::map<RequestId, std::unique_ptr<Transfer>> transfers_;
  RequestId next_id_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ddp::etcd
