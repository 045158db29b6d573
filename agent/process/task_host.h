#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/process/spawn.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/wire/frame.h"
#include "common/wire/task_messages.h"

namespace ddp::agent {

// Another task of this node, in which the agent starts a worker and through which it learns how the
// worker ended: the process there (agent/shell/task_server.h) is the worker's parent. Signals go to
// the worker directly, as its number stays its own until take_status().
//
// All calls wait for the task's answer, but never longer than they say. A task that is gone, or
// that does not answer in time, is lost for good: its worker dies with it. One thread.
class TaskHost {
 public:
  // The task at the other end of a connection; kPeerLost or kProtocol where it does not say who it
  // is.
  static Result<std::shared_ptr<TaskHost>> greet(UniqueFd socket);

  int local_rank() const { return hello_.local_rank; }
  bool lost() const { return !socket_; }
  const std::vector<int>& cpus() const { return hello_.cpus; }
  const std::vector<std::string>& environment() const { return hello_.environment; }

  // Errors are those of spawn(); kPeerLost where the task is lost.
  Result<SpawnedProcess> start(const wire::StartWorker& order,
                               const std::vector<UniqueFd>& descriptors);
  // How a worker that is known to have ended did; nothing if the task is lost, and then it was
  // killed. Afterwards its number may be another process's.
  std::optional<wire::WorkerEnded> take_status(pid_t pid);

  // Kills what the task's workers have left, but for `keep`. Two calls, so that all tasks do it at
  // a time. False if something was alive after `limit`, or nobody has answered until `deadline`.
  void begin_clear(const std::vector<pid_t>& keep, Duration limit);
  bool finish_clear(TimePoint deadline);

 private:
  explicit TaskHost(UniqueFd socket) : socket_(std::move(socket)) {}
  bool send(const wire::TaskMessage& message, const std::vector<UniqueFd>& descriptors = {});
  // The next message; WorkerEnded is noted, too. Nothing once the task is lost, and at the
  // deadline.
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

// How many CPUs each of several processes has for itself: those that several may use count in
// parts. At least 1 each.
std::vector<int> cpu_shares(const std::vector<std::vector<int>>& cpus);

}  // namespace ddp::agent
