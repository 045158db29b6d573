#include "agent/process/task_host.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/process/descriptor_passing.h"

namespace ddp::agent {
namespace {

// The task answers at once unless it is stopped or its machine is about to be lost. The limit is
// less than a lease, within which the coordinator must hear from this agent.
constexpr Duration kAnswerLimit{2'000};

bool wait_for(int fd, short events, TimePoint deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
    pollfd item{fd, events, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(std::max<Duration::rep>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

Result<std::shared_ptr<TaskHost>> TaskHost::greet(UniqueFd socket) {
  std::shared_ptr<TaskHost> host(new TaskHost(std::move(socket)));
  const auto message = host->receive(Clock::now() + kAnswerLimit);
  if (!message) return make_error(Errc::kPeerLost, "a task of this node sent no hello");
  const auto* hello = std::get_if<wire::TaskHello>(&*message);
  if (hello == nullptr)
    return make_error(Errc::kProtocol,
                      "the first message of a task of this node was not its hello");
  host->hello_ = *hello;
  return host;
}

void TaskHost::lose() {
  socket_.reset();
  received_.clear();
}

bool TaskHost::send(const wire::TaskMessage& message, const std::vector<UniqueFd>& descriptors) {
  const std::string frame = wire::encode_frame(wire::encode(message));
  std::string_view rest = frame;
  const TimePoint deadline = Clock::now() + kAnswerLimit;
  while (socket_ && !rest.empty()) {
    const bool first = rest.size() == frame.size();
    const ssize_t sent = send_with_descriptors(
        socket_.get(), rest, {descriptors.data(), first ? descriptors.size() : 0});
    if (sent > 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && errno == EINTR) {
      continue;
    } else if (sent == 0 || (errno != EAGAIN && errno != EWOULDBLOCK) ||
               !wait_for(socket_.get(), POLLOUT, deadline)) {
      lose();
    }
  }
  return !lost();
}

bool TaskHost::read_some(TimePoint deadline) {
  for (;;) {
    std::array<char, 4096> buffer;
    const ssize_t size = receive_with_descriptors(socket_.get(), buffer, received_);
    if (size > 0) {
      decoder_.append({buffer.data(), static_cast<std::size_t>(size)});
      return true;
    }
    if (size < 0 && errno == EINTR) continue;
    if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      lose();
      return false;
    }
    if (!wait_for(socket_.get(), POLLIN, deadline)) return false;
  }
}

// A malformed message ends the connection, because nothing after it can be trusted.
std::optional<wire::TaskMessage> TaskHost::next_frame() {
  const auto frame = decoder_.next();
  if (!frame) {
    lose();
    return std::nullopt;
  }
  if (!*frame) return std::nullopt;
  auto message = wire::decode_task_message(**frame);
  if (message) return std::move(*message);
  lose();
  return std::nullopt;
}

std::optional<wire::TaskMessage> TaskHost::receive(TimePoint deadline) {
  for (;;) {
    if (auto message = next_frame()) {
      if (const auto* ended = std::get_if<wire::WorkerEnded>(&*message))
        ended_[ended->pid] = *ended;
      return message;
    }
    if (lost() || !read_some(deadline)) return std::nullopt;
  }
}

Result<SpawnedProcess> TaskHost::start(const wire::StartWorker& order,
                                       const std::vector<UniqueFd>& descriptors) {
  const auto gone = [] {
    return make_error(Errc::kPeerLost, "the task of this worker is gone, or does not answer");
  };
  if (lost() || !send(order, descriptors)) return gone();
  const TimePoint deadline = Clock::now() + kAnswerLimit;
  while (const auto answer = receive(deadline)) {
    if (const auto* failed = std::get_if<wire::WorkerNotStarted>(&*answer)) {
      return Error{spawn_failure_code(failed->status), failed->why};
    }
    const auto* started = std::get_if<wire::WorkerStarted>(&*answer);
    if (started == nullptr) continue;  // The answer to an earlier call that no longer waits.
    if (started->pid <= 1 || received_.empty()) break;
    UniqueFd pidfd = std::move(received_.front());
    received_.clear();
    return SpawnedProcess{started->pid, std::move(pidfd)};
  }
  lose();  // If the task has started the worker after all, it ends with the connection.
  return gone();
}

std::optional<wire::WorkerEnded> TaskHost::take_status(pid_t pid) {
  const TimePoint deadline = Clock::now() + kAnswerLimit;
  while (!lost() && !ended_.contains(pid)) {
    if (!receive(deadline) && Clock::now() >= deadline) lose();
  }
  const auto found = ended_.find(pid);
  if (found == ended_.end()) return std::nullopt;
  const wire::WorkerEnded end = found->second;
  ended_.erase(found);
  if (!lost()) send(wire::TakeStatus{pid});
  return end;
}

void TaskHost::begin_clear(const std::vector<pid_t>& keep, Duration limit) {
  if (lost()) return;
  send(wire::ClearTask{++clear_number_, static_cast<int>(limit.count()), keep});
}

bool TaskHost::finish_clear(TimePoint deadline) {
  while (!lost()) {
    const auto answer = receive(deadline);
    if (!answer && !lost()) return false;
    const auto* cleared = answer ? std::get_if<wire::TaskCleared>(&*answer) : nullptr;
    if (cleared != nullptr && cleared->number == clear_number_) return cleared->complete;
  }
  return true;  // Everything that the task had started dies with it.
}

std::vector<int> cpu_shares(const std::vector<std::vector<int>>& cpus) {
  std::map<int, int> users;
  for (const auto& mask : cpus) {
    for (const int cpu : mask) ++users[cpu];
  }
  std::vector<int> shares;
  for (const auto& mask : cpus) {
    double share = 0;
    for (const int cpu : mask) share += 1.0 / users[cpu];
    // 1e-6: three thirds must add up to 1.
    shares.push_back(std::max(1, static_cast<int>(share + 1e-6)));
  }
  return shares;
}

}  // namespace ddp::agent
