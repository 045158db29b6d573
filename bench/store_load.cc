#include "bench/store_load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <system_error>
#include <unordered_map>

#include <fmt/format.h>

#include "common/wire/c10d.h"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;
using wire::c10d::Dialect;
using wire::c10d::Op;
using wire::c10d::Request;

constexpr int kEvents = 256;
constexpr int kAnswerLimitMs = 120'000;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) fail("send");
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

// Reads what has arrived; returns the number of bytes, 0 if there are none.
std::size_t receive(int fd, std::array<char, 4096>& buffer) {
  const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) throw std::runtime_error("the server closed the connection");
  if (errno == EAGAIN || errno == EINTR) return 0;
  fail("recv");
}

// Watches many sockets for input; each event has the number given with its socket.
class Readiness {
 public:
  Readiness() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (fd_.get() < 0) fail("epoll_create1");
  }
  void add(int fd, std::size_t number) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = number;
    if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
  }
  // Calls `call` for each ready socket; throws if none is ready within `limit_ms` (-1: no limit).
  template <typename Call>
  void wait(int limit_ms, Call&& call) {
    const int count = ::epoll_wait(fd_.get(), events_.data(), kEvents, limit_ms);
    if (count < 0 && errno != EINTR) fail("epoll_wait");
    if (count == 0) throw std::runtime_error("no answer for two minutes");
    for (int i = 0; i < count; ++i) {
      call(static_cast<std::size_t>(events_[static_cast<std::size_t>(i)].data.u64));
    }
  }

 private:
  UniqueFd fd_;
  std::array<epoll_event, kEvents> events_{};
};

// Counts the bytes of an answer as they arrive.
class Pending {
 public:
  explicit Pending(Answer answer) : answer_(answer) {}
  // Whether the answer is complete with these bytes.
  bool complete(std::string_view bytes) {
    got_ += bytes.size();
    return answer_.bytes == 0 ? bytes.ends_with('\n') : got_ >= answer_.bytes;
  }

 private:
  Answer answer_;
  std::size_t got_ = 0;
};

}  // namespace

UniqueFd connect_to(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) fail("socket");
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail("connect");
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  return fd;
}

void converse(int fd, const Exchange& exchange) {
  send_all(fd, exchange.request);
  Pending pending(exchange.answer);
  std::array<char, 4096> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, kAnswerLimitMs) == 0) throw std::runtime_error("no answer");
    const std::size_t got = receive(fd, buffer);
    if (got > 0 && pending.complete({buffer.data(), got})) return;
  }
}

LoadResult run_load(const std::vector<UniqueFd>& clients, const std::vector<Exchange>& exchanges,
                    double seconds) {
  Readiness readiness;
  std::vector<Pending> pending;
  std::vector<Clock::time_point> sent(clients.size());
  for (std::size_t i = 0; i < clients.size(); ++i) {
    converse(clients[i].get(), exchanges[i]);
    readiness.add(clients[i].get(), i);
    pending.emplace_back(exchanges[i].answer);
  }
  LoadResult out;
  out.times.reserve(kMostRuns);
  std::array<char, 4096> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration<double>(seconds);
  std::size_t flying = clients.size();
  for (std::size_t i = 0; i < clients.size(); ++i) {
    sent[i] = Clock::now();
    send_all(clients[i].get(), exchanges[i].request);
  }
  while (flying > 0) {
    readiness.wait(kAnswerLimitMs, [&](std::size_t i) {
      const std::size_t got = receive(clients[i].get(), buffer);
      if (got == 0 || !pending[i].complete({buffer.data(), got})) return;
      const auto now = Clock::now();
      out.times.push_back(std::chrono::duration<double>(now - sent[i]).count());
      pending[i] = Pending(exchanges[i].answer);
      if (now >= end) {
        --flying;
        return;
      }
      sent[i] = now;
      send_all(clients[i].get(), exchanges[i].request);
    });
  }
  out.seconds = seconds_since(begin);
  return out;
}

double run_barrier(const std::vector<UniqueFd>& clients, Protocol protocol, std::string_view name,
                   bool by_counter) {
  const Dialect dialect = protocol == Protocol::kC10dNewest ? Dialect::kNewest : Dialect::kLegacy;
  const std::string flag = fmt::format("{}/last", name);
  std::string arrive;
  std::string wait;
  std::string set;
  Request request;
  request.op = by_counter ? Op::kAdd : Op::kBarrier;
  request.key = name;
  request.number = by_counter ? 1 : static_cast<std::int64_t>(clients.size());
  wire::c10d::encode_request(request, dialect, arrive);
  request = {};
  request.op = Op::kSet;
  request.key = flag;
  request.value = "1";
  wire::c10d::encode_request(request, dialect, set);
  request = {};
  request.op = Op::kWait;
  request.keys = {flag};
  wire::c10d::encode_request(request, dialect, wait);

  Readiness readiness;
  for (std::size_t i = 0; i < clients.size(); ++i) readiness.add(clients[i].get(), i);
  std::vector<bool> counted(clients.size(), !by_counter);
  std::vector<std::string> number(clients.size());
  std::array<char, 4096> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::size_t inside = clients.size();
  const auto begin = Clock::now();
  for (const UniqueFd& client : clients) send_all(client.get(), arrive);
  while (inside > 0) {
    readiness.wait(kAnswerLimitMs, [&](std::size_t i) {
      const std::size_t got = receive(clients[i].get(), buffer);
      if (got == 0) return;
      if (counted[i]) {
        --inside;  // One byte: released.
        return;
      }
      number[i].append(buffer.data(), got);
      if (number[i].size() < 8) return;
      counted[i] = true;
      const bool last =
          wire::c10d::get_i64(number[i].data()) == static_cast<std::int64_t>(clients.size());
      send_all(clients[i].get(), last ? set + wait : wait);
    });
  }
  return seconds_since(begin);
}

void serve_echo() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) fail("bind");
  if (::listen(listener.get(), SOMAXCONN) != 0) fail("listen");
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  Readiness readiness;
  readiness.add(listener.get(), static_cast<std::size_t>(listener.get()));
  readiness.add(STDIN_FILENO, STDIN_FILENO);
  std::unordered_map<int, UniqueFd> clients;
  std::array<char, 4096> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  for (bool over = false; !over;) {
    readiness.wait(-1, [&](std::size_t number) {
      const int fd = static_cast<int>(number);
      if (fd == STDIN_FILENO) {
        over = true;
        return;
      }
      if (fd == listener.get()) {
        UniqueFd client(::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (client.get() < 0) return;
        const int on = 1;
        ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        readiness.add(client.get(), static_cast<std::size_t>(client.get()));
        const int key = client.get();
        clients.insert_or_assign(key, std::move(client));
        return;
      }
      const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        clients.erase(fd);
        return;
      }
      send_all(fd, {buffer.data(), static_cast<std::size_t>(got)});
    });
  }
}

void churn(int port, std::size_t connections, std::uint64_t seed) {
  std::mt19937_64 dice(seed);
  const linger reset{1, 0};
  for (std::size_t i = 0; i < connections; ++i) {
    const UniqueFd fd = connect_to(port);
    std::string garbage(dice() % 256, '\0');
    for (char& byte : garbage) byte = static_cast<char>(dice());
    // The server may have closed already.
    ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
}

}  // namespace ddp::bench
