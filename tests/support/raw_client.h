#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ddp::test {

// A TCP client of a port of 127.0.0.1, or of ::1 with AF_INET6, that sends and receives what the
// test says. Each wait is limited to 20 s.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0, int family = AF_INET)
      : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const std::uint16_t network_port = htons(static_cast<std::uint16_t>(port));
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4.sin_port = network_port;
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    v6.sin6_port = network_port;
    const bool is_v4 = family == AF_INET;
    const auto* const address =
        is_v4 ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
    if (::connect(fd_, address, is_v4 ? sizeof(v4) : sizeof(v6)) != 0) {
      ::close(fd_);
      throw std::runtime_error("cannot connect to port " + std::to_string(port));
    }
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False if the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  // That many bytes, or fewer if the connection ends or the time is up.
  std::string receive(std::size_t count) {
    std::string out;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (out.size() < count && readable(deadline)) {
      std::array<char, 65'536> buffer;
      const std::size_t wanted = std::min(buffer.size(), count - out.size());
      const ssize_t got = ::recv(fd_, buffer.data(), wanted, 0);
      if (got < 0) error_ = errno;
      if (got <= 0) break;
      out.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return out;
  }

  // What is there, at least one byte; nothing if the connection ends or the time is up.
  std::string receive_some() {
    std::array<char, 65'536> buffer;
    if (!readable(std::chrono::steady_clock::now() + std::chrono::minutes(2))) return {};
    const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
    return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

  // Of the last receive(): ECONNRESET if the server has reset the connection, else 0.
  int error() const { return error_; }

  // Everything until the server closes.
  std::string receive_all() { return receive(std::size_t{1} << 40); }

  // Says that nothing more will be sent, and goes on to receive.
  void finish() { ::shutdown(fd_, SHUT_WR); }

  // True if the server closes without sending anything more.
  bool is_closed_by_peer() {
    char byte = 0;
    return readable(std::chrono::steady_clock::now() + std::chrono::minutes(2)) &&
           ::recv(fd_, &byte, 1, 0) <= 0;
  }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Closes with a reset (RST) instead of a FIN.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close();
  }

 private:
  bool readable(std::chrono::steady_clock::time_point deadline) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{fd_, POLLIN, 0};
    return left.count() > 0 && ::poll(&entry, 1, static_cast<int>(left.count())) > 0;
  }

  int fd_;
  int error_ = 0;
};

// The whole answer to a browser's request; "" if none comes. `headers`: each ends with \r\n.
inline std::string http_get(int port, const std::string& target, const std::string& headers = "") {
  RawClient client(port);
  client.send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  return client.receive_all();
}

inline std::string http_body(const std::string& answer) {
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

}  // namespace ddp::test
