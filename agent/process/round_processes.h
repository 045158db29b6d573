#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>

#include "agent/core/agent_core.h"
#include "agent/process/console.h"
#include "agent/process/round_memory.h"
#include "agent/process/worker.h"
#include "common/base/clock.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// All processes of this node: the workers of at most one round and whatever they start. This
// process must be a child subreaper and have no other children. Lives on the thread of `io`, which
// must be the main thread (see spawn()).
class RoundProcesses {
 public:
  struct Events {
    std::function<void(const WorkerExit&)> on_exit;  // Once a started worker, not from inside a
                                                     // call to this object other than reap().
    std::function<void(int local_rank, std::int64_t step)> on_progress;
  };
  struct StartFailure {
    int local_rank = 0;
    int status = 0;  // 126, 127 or kExitInternal.
    std::string why;
  };

  RoundProcesses(asio::io_context& io, config::JobSpec spec, Console::Pair console, Events events);
  ~RoundProcesses();
  RoundProcesses(const RoundProcesses&) = delete;
  RoundProcesses& operator=(const RoundProcesses&) = delete;

  // Starts a worker for each local rank; those that could not be started are returned. Nothing may
  // be left of the round before: clear() has said so.
  std::vector<StartFailure> start(const wire::RoundStart& round);
  // To the process group of each live worker. With a reason: first the abort word and an `abort`
  // order.
  void signal(int number, const std::string& abort_reason);
  // After SIGCHLD: takes the status of every child that has ended, workers and adopted orphans.
  void reap();
  // Kills whatever is left of the round and lets go of its memory, pipes and files. False if
  // something still lived after `limit`: call again. Workers that are killed here get no on_exit.
  bool clear(Duration limit);
  // Lets go of what clear() could not kill, so that another round can start.
  void abandon();
  // Sentences about what the workers of the round that was cleared last were waiting for; none if
  // it ended well.
  std::vector<std::string> take_operations() { return std::exchange(operations_, {}); }

 private:
  std::shared_ptr<Worker> find(pid_t pid) const;
  void keep_flights();

  const config::JobSpec spec_;
  const std::vector<std::string> environment_;
  WorkerContext context_;
  Round round_ = kNoRound;
  std::unique_ptr<RoundMemory> memory_;
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::string> operations_;
};

}  // namespace ddp::agent
