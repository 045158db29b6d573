#include "worker/runtime/store_daemon.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/process/spawn_settings.h"
#include "worker/runtime/own_program.h"

namespace ddp::runtime {
namespace {

constexpr const char* kProgram = "ddp-rendezvous";

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

std::string numeric(const addrinfo& address) {
  std::array<char, NI_MAXHOST> text{};
  ::getnameinfo(address.ai_addr, address.ai_addrlen, text.data(), text.size(), nullptr, 0,
                NI_NUMERICHOST);
  return text.data();
}

// Where a daemon for HOST:PORT must listen (empty: everywhere). Nothing if no daemon should be
// started: the port is taken, or the address belongs to another machine.
std::optional<std::string> bind_address(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  std::optional<std::string> chosen;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0) {
      // Clients try all addresses of a name, but PyTorch's do not find a daemon on IPv6 alone.
      const bool better = !chosen || address->ai_family == AF_INET;
      if (better) chosen = is_loopback(*address->ai_addr) ? numeric(*address) : "";
    } else if (errno == EADDRINUSE) {
      return {};
    }
  }
  return chosen;
}

// Starts the daemon with these as its standard input and output.
Result<pid_t> spawn(std::vector<std::string> words, int input, int output) {
  // A signal to the training's process group must not end the store, which others still use.
  SpawnSettings settings(POSIX_SPAWN_SETPGROUP);
  settings.give(input, STDIN_FILENO);
  settings.give(output, STDOUT_FILENO);
  const std::string program = words.front();
  pid_t pid = -1;
  const int failure = settings.spawn(pid, std::move(words));
  if (failure == ENOENT) {
    return make_error(Errc::kNotFound,
                      "there is no program {} to serve the store; install it, add it to PATH or "
                      "set DDP_RENDEZVOUS to its path",
                      program);
  }
  if (failure != 0) {
    return make_error(Errc::kIo, "cannot start {}: {}", program,
                      std::generic_category().message(failure));
  }
  return pid;
}

// Waits until the daemon has printed a line, and returns it.
Result<std::string> await_line(int fd, const std::string& program, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<long>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0)
      return make_error(Errc::kTimeout, "{} did not report in time that it listens", program);
    std::array<char, 256> bytes{};
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count <= 0) {
      return make_error(Errc::kIo, "{} ended at once; see its message in standard error", program);
    }
    std::string text(bytes.data(), static_cast<std::size_t>(count));
    if (text.ends_with('\n')) return text;
  }
}

struct Daemon {
  pid_t pid = -1;
  UniqueFd input;    // The daemon ends when this closes.
  std::string said;  // "listening on 127.0.0.1:29400\n"
};

// Starts a daemon on this address, or on all addresses if it is empty.
Result<Daemon> start_on(const std::string& address, int port, TimePoint deadline) {
  Pipe input;
  Pipe output;
  if (!input.open() || !output.open()) {
    return make_error(Errc::kIo, "cannot make a pipe: {}", std::generic_category().message(errno));
  }
  const std::string program = own_program(kProgram, "DDP_RENDEZVOUS");
  std::vector<std::string> words = {program, "--until-eof", "--port", std::to_string(port)};
  if (!address.empty()) words.insert(words.end(), {"--bind", address});
  const Result<pid_t> pid = spawn(std::move(words), input.read_end.get(), output.write_end.get());
  if (!pid) return pid.error();
  output.write_end.reset();
  Result<std::string> listens = await_line(output.read_end.get(), program, deadline);
  if (listens) return Daemon{*pid, std::move(input.write_end), std::move(*listens)};
  input.write_end.reset();
  ::waitpid(*pid, nullptr, 0);
  return listens.error();
}

// Starts a daemon, unless none should be started.
Result<std::optional<Daemon>> start(const std::string& host, int port, TimePoint deadline) {
  const std::optional<std::string> address = bind_address(host, port);
  if (!address) return std::optional<Daemon>();
  Result<Daemon> daemon = start_on(*address, port, deadline);
  if (!daemon) return daemon.error();
  return std::optional(std::move(*daemon));
}

struct Daemons {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, Daemon> by_endpoint;
};

// Never destroyed: the end of the process closes their input, and so ends them.
Daemons& daemons() {
  static auto* const instance = new Daemons;
  return *instance;
}

}  // namespace

Result<void> serve_store(const std::string& host, int port, TimePoint deadline) {
  Daemons& all = daemons();
  const std::lock_guard lock(all.mutex);
  const auto known = all.by_endpoint.find({host, port});
  if (known != all.by_endpoint.end()) {
    if (::waitpid(known->second.pid, nullptr, WNOHANG) == 0) return {};
    all.by_endpoint.erase(known);  // It has ended.
  }
  Result<std::optional<Daemon>> started = start(host, port, deadline);
  if (!started) return started.error();
  if (*started) all.by_endpoint.emplace(std::pair(host, port), **std::move(started));
  return {};
}

Result<ServedStore> ServedStore::start(TimePoint deadline) {
  Result<Daemon> daemon = start_on("127.0.0.1", 0, deadline);
  if (!daemon) return daemon.error();
  const std::size_t colon = daemon->said.rfind(':');
  const int port = colon == std::string::npos ? 0 : std::atoi(daemon->said.c_str() + colon + 1);
  ServedStore store(port, daemon->pid, std::move(daemon->input));
  if (port <= 0) return make_error(Errc::kProtocol, "{} said: {}", kProgram, daemon->said);
  return store;
}

ServedStore::ServedStore(ServedStore&& other) noexcept
    : port_(other.port_), pid_(std::exchange(other.pid_, -1)), input_(std::move(other.input_)) {}

ServedStore::~ServedStore() {
  if (pid_ < 0) return;
  input_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace ddp::runtime
