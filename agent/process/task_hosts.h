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

// The other tasks of this node, by the local ranks of their workers; that of local rank 0 is the
// agent's own. Each connects once more when it has lost its agent, or its agent has given it up.
// Lives on the thread of `io`.
class TaskHosts {
 public:
  // `listener`: a unix socket that listens. Processes of other users are turned away. `count`:
  // tasks of this node, this one included.
  TaskHosts(asio::io_context& io, UniqueFd listener, int count);

  // Calls back once, from the event loop, when all are there or `limit` has passed, with the local
  // ranks of those that are missing.
  void when_complete(Duration limit, std::function<void(const std::set<int>& missing)> done);
  // Null: not there, lost, or this process's own.
  std::shared_ptr<TaskHost> of(int local_rank) const;
  // Of a task that has been there once, even if it is lost; else null.
  const std::vector<std::string>* environment_of(int local_rank) const;
  // CPUs that each worker has for itself, by local rank; a missing task's are this process's.
  std::vector<int> cpu_shares() const;

 private:
  void wait();
  void accept_all();
  void check_complete();
  std::set<int> missing() const;

  asio::posix::stream_descriptor listener_;
  net::Timer limit_;
  std::vector<std::shared_ptr<TaskHost>> hosts_;  // By local rank; null: not there yet.
  std::function<void(const std::set<int>& missing)> done_;
};

// CPUs that this process may use.
std::vector<int> own_cpus();

}  // namespace ddp::agent
