#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/support/listener.h"

namespace ddp::test {

// A loopback relay between clients and one server that cuts a connection where the test says. Its
// own thread moves the bytes.
class Relay {
 public:
  enum class Way { kToServer, kToClient };
  // Cuts a connection after so many bytes in this direction; further bytes are lost.
  struct Cut {
    Way way = Way::kToServer;
    std::size_t after = 0;
    bool reset = false;  // With a reset (RST) instead of a FIN.
  };
  // Sees the bytes that pass; returning false cuts the connection before them.
  using Filter = std::function<bool(Way way, std::string_view bytes)>;

  explicit Relay(int server_port, Filter filter = {})
      : server_port_(server_port), filter_(std::move(filter)) {
    ::fcntl(listener_.fd(), F_SETFL, O_NONBLOCK);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stopping_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return listener_.port(); }
  // Counts from now on, for the open connections; cuts only the first one that reaches the limit.
  void cut(const Cut& next) {
    const std::lock_guard lock(mutex_);
    cut_ = next;
    passed_ = 0;
  }
  // Whether the cut was made.
  bool has_cut() {
    const std::lock_guard lock(mutex_);
    return !cut_;
  }
  void close_all() {
    const std::lock_guard lock(mutex_);
    for (const Pair& pair : pairs_) {
      // Closing would not reach the peers before the relay's thread has ended its poll().
      ::shutdown(pair.client.get(), SHUT_RDWR);
      ::shutdown(pair.server.get(), SHUT_RDWR);
    }
    pairs_.clear();
  }
  // Number of bytes in the direction of the cut since the last call.
  std::size_t count(Way way) {
    const std::lock_guard lock(mutex_);
    return std::exchange(counts_[index(way)], 0);
  }
  std::size_t num_accepted() const { return accepted_; }
  // The answers to every request with this text wait until the next call. Empty: to none.
  void hold(std::string text) {
    const std::lock_guard lock(mutex_);
    hold_ = std::move(text);
    for (Pair& pair : pairs_) pair.held = false;
  }
  // New connections are closed at once.
  void refuse(bool on) { refusing_ = on; }

 private:
  struct Pair {
    UniqueFd client, server;
    bool dead = false;
    bool held = false;
  };
  static std::size_t index(Way way) { return way == Way::kToServer ? 0 : 1; }

  void run() {
    while (!stopping_) {
      accept_one();
      const std::lock_guard lock(mutex_);
      for (Pair& pair : pairs_) {
        move(pair, pair.client.get(), pair.server.get(), Way::kToServer);
        if (!pair.dead && !pair.held)
          move(pair, pair.server.get(), pair.client.get(), Way::kToClient);
      }
      pairs_.remove_if([](const Pair& pair) { return pair.dead; });
    }
  }

  // Waits briefly for events.
  void accept_one() {
    std::vector<pollfd> entries{{listener_.fd(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Pair& pair : pairs_) {
        entries.push_back({pair.client.get(), POLLIN, 0});
        if (!pair.held) entries.push_back({pair.server.get(), POLLIN, 0});
      }
    }
    ::poll(entries.data(), entries.size(), 5);
    UniqueFd client(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) return;
    ++accepted_;
    UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(server_port_));
    if (refusing_ ||
        ::connect(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return;
    }
    const int on = 1;
    for (const UniqueFd* fd : {&client, &server}) {
      ::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    const std::lock_guard lock(mutex_);
    pairs_.push_back({std::move(client), std::move(server)});
  }

  void move(Pair& pair, int from, int to, Way way) {
    std::array<char, 65'536> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    const ssize_t count = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      pair.dead = true;
      return;
    }
    std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    if (filter_ && !filter_(way, bytes)) {
      pair.dead = true;
      return;
    }
    if (way == Way::kToServer && !hold_.empty() && bytes.find(hold_) != bytes.npos)
      pair.held = true;
    if (cut_ && cut_->way == way) {
      if (passed_ + bytes.size() >= cut_->after) {
        bytes = bytes.substr(0, cut_->after - passed_);
        pair.dead = true;
      }
      passed_ += bytes.size();
    }
    counts_[index(way)] += bytes.size();
    while (!bytes.empty()) {
      const ssize_t sent = ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    if (!pair.dead || !cut_) return;
    if (cut_->reset) {
      const linger hard{1, 0};
      ::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    cut_.reset();
  }

  ListeningSocket listener_;
  int server_port_;
  Filter filter_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> refusing_{false};
  std::atomic<std::size_t> accepted_{0};
  std::mutex mutex_;  // Guards what follows.
  std::list<Pair> pairs_;
  std::optional<Cut> cut_;
  std::string hold_;
  std::size_t passed_ = 0;  // Bytes in the direction of the cut.
  std::array<std::size_t, 2> counts_{};
  std::thread thread_;
};

}  // namespace ddp::test
