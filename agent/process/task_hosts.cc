#include "agent/process/task_hosts.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/process/this_process.h"
#include "common/process/user_gate.h"

namespace ddp::agent {
namespace {

// The others wait for the next turn of the event loop.
constexpr int kAtOnce = 64;

}  // namespace

TaskHosts::TaskHosts(asio::io_context& io, UniqueFd listener, int count)
    : listener_(io, listener.release()), limit_(io), hosts_(static_cast<std::size_t>(count)) {
  listener_.non_blocking(true);
  wait();
}

void TaskHosts::wait() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this](const std::error_code& error) {
                         if (error) return;
                         accept_all();
                         wait();
                       });
}

void TaskHosts::accept_all() {
  for (int i = 0; i < kAtOnce; ++i) {
    UniqueFd socket(::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) break;
    if (!is_own_users(socket.get())) continue;
    auto host = TaskHost::greet(std::move(socket));
    if (!host) continue;
    const auto place = static_cast<std::size_t>((*host)->local_rank());
    if (place == 0 || place >= hosts_.size()) continue;
    // A task that connects again has closed its former connection.
    hosts_[place] = std::move(*host);
  }
  check_complete();
}

std::set<int> TaskHosts::missing() const {
  std::set<int> ranks;
  for (std::size_t i = 1; i < hosts_.size(); ++i) {
    if (!hosts_[i] || hosts_[i]->lost()) ranks.insert(static_cast<int>(i));
  }
  return ranks;
}

void TaskHosts::when_complete(Duration limit,
                              std::function<void(const std::set<int>& missing)> done) {
  done_ = std::move(done);
  limit_.after(limit, [this] {
    if (const auto call = std::exchange(done_, nullptr)) call(missing());
  });
  check_complete();
}

void TaskHosts::check_complete() {
  if (!done_ || !missing().empty()) return;
  // So that the callback comes from the event loop even if no task is missing from the start.
  limit_.after(Duration(0), [this] {
    if (const auto call = std::exchange(done_, nullptr)) call(missing());
  });
}

std::shared_ptr<TaskHost> TaskHosts::of(int local_rank) const {
  const auto place = static_cast<std::size_t>(local_rank);
  if (local_rank < 1 || place >= hosts_.size()) return nullptr;
  const std::shared_ptr<TaskHost>& host = hosts_[place];
  return host && !host->lost() ? host : nullptr;
}

const std::vector<std::string>* TaskHosts::environment_of(int local_rank) const {
  const auto place = static_cast<std::size_t>(local_rank);
  return place < hosts_.size() && hosts_[place] ? &hosts_[place]->environment() : nullptr;
}

std::vector<int> TaskHosts::cpu_shares() const {
  std::vector<std::vector<int>> cpus;
  for (const auto& host : hosts_) cpus.push_back(host ? host->cpus() : allowed_cpus());
  return agent::cpu_shares(cpus);
}

}  // namespace ddp::agent
