#include "worker/runtime/memory_handout.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/base/random_hex.h"
#include "common/process/abstract_socket.h"
#include "common/process/descriptor_passing.h"
#include "common/process/user_gate.h"
#include "common/wait/deadline.h"

namespace ddp::runtime {
namespace {

constexpr std::size_t kNameBytes = 16;
constexpr int kBacklog = 512;
constexpr char kGreeting = 'm';
// At most this many strangers are turned away in a row, so that a flood of them holds up nobody.
constexpr int kStrangersAtOnce = 256;
constexpr int kConnectPauseMs = 1;

std::string errno_text() { return std::generic_category().message(errno); }

UniqueFd unix_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// False at the deadline. A signal ends poll() early, and a minute is the longest that it waits.
bool await_answer(int fd, TimePoint deadline) {
  pollfd entry{fd, POLLIN, 0};
  while (::poll(&entry, 1, milliseconds_until(deadline)) <= 0) {
    if (Clock::now() >= deadline) return false;
  }
  return true;
}

}  // namespace

Result<MemoryHandout> MemoryHandout::open(UniqueFd memory) {
  UniqueFd socket = unix_socket();
  std::string name = "ddp-memory-" + random_hex(kNameBytes);
  if (!socket || bind_abstract(socket.get(), name) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    return make_error(Errc::kIo, "a Unix socket cannot be made: {}", errno_text());
  }
  return MemoryHandout(std::move(memory), std::move(socket), std::move(name));
}

int MemoryHandout::serve(Duration limit) {
  int served = 0;
  int strangers = 0;
  pollfd entry{socket_.get(), POLLIN, 0};
  while (::poll(&entry, 1, served > 0 ? 0 : static_cast<int>(limit.count())) > 0) {
    const UniqueFd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) break;
    if (!is_own_users(peer.get())) {
      if (++strangers == kStrangersAtOnce) break;
      continue;
    }
    // A fresh socket has room for one byte.
    if (send_with_descriptors(peer.get(), {&kGreeting, 1}, {&memory_, 1}) == 1) ++served;
  }
  return served;
}

Result<UniqueFd> take_memory(const std::string& name, TimePoint deadline) {
  const UniqueFd socket = unix_socket();
  if (!socket) return make_error(Errc::kIo, "a Unix socket cannot be made: {}", errno_text());
  int failed = connect_abstract(socket.get(), name);
  // The queue of those who wait to be served is full, for example of strangers.
  while (failed != 0 && errno == EAGAIN && Clock::now() < deadline) {
    ::poll(nullptr, 0, kConnectPauseMs);
    failed = connect_abstract(socket.get(), name);
  }
  if (failed != 0) {
    return make_error(Errc::kIo, "the rank that made the memory cannot be reached: {}",
                      errno_text());
  }
  if (!is_own_users(socket.get())) {
    return make_error(Errc::kProtocol, "another user answers for the rank that made the memory");
  }
  if (!await_answer(socket.get(), deadline)) {
    return make_error(Errc::kTimeout, "the rank that made the memory did not answer");
  }
  std::array<char, 1> greeting{};
  std::vector<UniqueFd> received;
  const ssize_t bytes = receive_with_descriptors(socket.get(), greeting, received);
  if (bytes != 1 || received.size() != 1) {
    return make_error(Errc::kProtocol,
                      "the rank that made the memory sent no descriptor (this process may have too "
                      "many open files)");
  }
  return std::move(received.front());
}

}  // namespace ddp::runtime
