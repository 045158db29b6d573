#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/process/spawn_program.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/wire/frame.h"
#include "common/wire/task_messages.h"

namespace ddp::agent {

// Another task of this node, in which the agent starts a worker. The task's process
// (agent/shell/task_server.h) is the parent of the worker and tells the agent how it ended. Signals
// go to the worker directly, because its pid stays its own until take_status().
//
// All calls wait for the task's answer, but for a limited time. A task that is gone, or that does
// not answer in time, is lost for good, and its worker dies with it. One thread.
class TaskHost {
 public:
  // The task at the other end of a connection. kPeerLost or kProtocol if it does not send its
  // hello.
  static Result<std::shared_ptr<TaskHost>> greet(UniqueFd socket);

  int local_rank() const { return hello_.local_rank; }
  bool lost() const { return !socket_; }
  const std::vector<int>& cpus() const { return hello_.cpus; }
  const std::vector<std::string>& environment() const { return hello_.environment; }

  // Errors are those of spawn(), and kPeerLost if the task is lost.
  Result<SpawnedProcess> start(const wire::StartWorker& order,
                               const std::vector<UniqueFd>& descriptors);
  // How a worker that is known to have ended did so. Empty if the task is lost; the worker was then
  // killed. Afterwards another process may get its pid.
  std::optional<wire::WorkerEnded> take_status(pid_t pid);

  // Kills the processes that the task's workers have left, except `keep`. There are two calls, so
  // that all tasks can do it at the same time. False if something was alive after `limit`, or if
  // there was no answer until `deadline`.
  void begin_clear(const std::vector<pid_t>& keep, Duration limit);
  bool finish_clear(TimePoint deadline);

 private:
  explicit TaskHost(UniqueFd socket) : socket_(std::move(socket)) {}
  bool send(const wire::TaskMessage& message, const std::vector<UniqueFd>& descriptors = {});
  // The next message. Also records WorkerEnded. Empty once the task is lost, and at the deadline.
  std::optional<wire::TaskMessage> receive(TimePoint deadline);
  std::optional<wire::TaskMessage> next_frame();
  bool read_some(TimePoint deadline);
  void lose();

  UniqueFd socket_;
  wire::TaskHello hello_;
  wire::FrameDecoder decoder_;
  std::vector<UniqueFd> received_;
  std::map<pid_t, wire::WorkerEnded> ended_;
  int clear_number_ = 0;
};

// How many CPUs each of several processes has for itself. A CPU that several processes may use
// counts as a fraction for each. At least 1 each.
std::vector<int> cpu_shares(const std::vector<std::vector<int>>& cpus);

}  // namespace ddp::agent
