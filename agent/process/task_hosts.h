#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "agent/process/task_host.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"

namespace ddp::agent {

// The other tasks of this node, by the local ranks of their workers. The task of local rank 0 is
// the agent's own. A task connects again when it has lost its agent, or its agent has given it up.
// Lives on the thread of `io`.
class TaskHosts {
 public:
  // `listener`: a listening unix socket. Processes of other users are refused. `count`: how many
  // tasks this node has, including this one.
  TaskHosts(asio::io_context& io, UniqueFd listener, int count);

  // Calls back once, from the event loop, when all tasks have connected or `limit` has passed.
  // `missing`: the local ranks of those that have not.
  void when_complete(Duration limit, std::function<void(const std::set<int>& missing)> done);
  // Null if the task has not connected, is lost, or is this process's own.
  std::shared_ptr<TaskHost> of(int local_rank) const;
  // The environment of a task that has ever connected, even if it is lost; otherwise null.
  const std::vector<std::string>* environment_of(int local_rank) const;
  // How many CPUs each worker has for itself, by local rank. A missing task counts with the CPUs of
  // this process.
  std::vector<int> cpu_shares() const;

 private:
  void wait();
  void accept_all();
  void check_complete();
  std::set<int> missing() const;

  asio::posix::stream_descriptor listener_;
  net::Timer limit_;
  std::vector<std::shared_ptr<TaskHost>> hosts_;  // By local rank; null: not connected yet.
  std::function<void(const std::set<int>& missing)> done_;
};

}  // namespace ddp::agent
