#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>

#include "agent/core/agent_core.h"
#include "agent/process/console.h"
#include "agent/process/file_timer.h"
#include "agent/process/node_output.h"
#include "agent/process/round_memory.h"
#include "agent/process/snapshot_writers.h"
#include "agent/process/state_watch.h"
#include "agent/process/status_line.h"
#include "agent/process/trace_reader.h"
#include "agent/process/worker.h"
#include "common/base/clock.h"
#include "common/config/job_spec.h"
#include "common/net/timer.h"
#include "common/wire/control_messages.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// All processes of this node: the workers of at most one round, parked workers that wait for the
// next one, standbys, and their descendants. This process must be a child subreaper and have no
// other children. Lives on the thread of `io`, which must be the main thread (see spawn()).
//
// Standbys (JobSpec.standby) are started when a worker that can take part in further rounds reports
// progress. So they do not slow down the start of the round, and a program that does not know
// rounds is never started outside one. A standby that dies is replaced in the next round.
//
// Processes that write snapshots of checkpoints belong to no round: nothing here ends them but
// give_writers_up().
class RoundProcesses {
 public:
  struct Events {
    // Called once for each worker, whenever it ends, also while it waits for a round. Not called
    // for standbys, nor for a worker that start() finds dead and replaces. Of the calls to this
    // object only reap() calls it from inside.
    std::function<void(const WorkerExit&)> on_exit;
    // The worker has been in state D for JobSpec.uninterruptible_ms, and still is. The WorkerExit
    // is as if SIGKILL had ended it.
    std::function<void(const WorkerExit&)> on_stuck = [](const WorkerExit&) {};
    // Called before on_progress for the same message.
    std::function<void(int local_rank, const wire::Progress& progress)> on_metrics =
        [](int, const wire::Progress&) {};
    std::function<void(int local_rank, std::int64_t step)> on_progress = [](int, std::int64_t) {};
    // Also called from inside start(), for each worker that was there before.
    std::function<void(int local_rank, bool reconfigurable)> on_hello = [](int, bool) {};
    std::function<void(int local_rank, Round round)> on_joined = [](int, Round) {};
    std::function<void(int local_rank, Round round, std::int64_t step)> on_parked =
        [](int, Round, std::int64_t) {};
    std::function<void(int local_rank, Round round, std::int64_t step)> on_committed =
        [](int, Round, std::int64_t) {};
    // How many snapshots are still to be written, also of workers that have ended.
    std::function<void(int count)> on_snapshots = [](int) {};
  };
  struct StartFailure {
    int local_rank = 0;
    int status = 0;  // 126, 127 or kExitInternal.
    std::string why;
  };

  // `writer`: the program ddp-checkpoint; empty: workers are told that no snapshots are accepted.
  RoundProcesses(asio::io_context& io, config::JobSpec spec, Console::Pair console, Events events,
                 const std::string& writer = installed_writer());
  ~RoundProcesses();
  RoundProcesses(const RoundProcesses&) = delete;
  RoundProcesses& operator=(const RoundProcesses&) = delete;

  // Workers with local ranks from 1 on are started in these tasks while they exist. `tasks` must
  // outlive this object.
  void use_tasks(const TaskHosts& tasks) { context_.tasks = &tasks; }

  // The workers' PyTorch is built without libuv. Their environment tells it so.
  void use_torch_without_libuv() { context_.torch_lacks_libuv = true; }

  // Makes the round's memory and gives it to the workers that wait; these keep their local ranks.
  // For the other local ranks it takes a waiting standby, or starts a process. Returns the workers
  // that could not be started. Nothing else may be left of the round before: clear() must have
  // returned true.
  std::vector<StartFailure> start(const wire::RoundStart& round);
  // With a reason: raises the abort word and sends each live worker an `abort` order. Then sends
  // the signal to the process group of each worker that is not in `keep`.
  void signal(int number, const std::string& abort_reason, const std::set<int>& keep = {});
  void request_commit(const wire::CommitRequest& order, const std::set<int>& from);
  // Sends `checkpoint_request` to the workers of the round that have said hello. If there is none,
  // the next worker that says hello or takes a place gets it.
  void request_checkpoint();
  // Those of `local_ranks` that do not wait for another rank in an operation of the round.
  std::set<int> hung(const std::set<int>& local_ranks) const;
  // What the workers wait for now, in sentences; none unless an operation has waited for a second.
  std::vector<std::string> waits() const;
  // What has become of checkpoints of this node's workers since the last call.
  std::vector<wire::SavedShare> take_saved() { return std::exchange(saved_, {}); }
  // What the workers do, while somebody wants to see it.
  TraceReader& trace() { return trace_; }
  // The last that this worker has written. Empty if there is none.
  wire::Output output(int local_rank) const;
  void dump_stacks(int local_rank);
  // Kills the worker, after its stacks are written if that is under way. Its exit has `cause`.
  void kill(int local_rank, const std::string& cause);
  // A timer of process `pid`, which is a worker or a descendant of one, has expired.
  void expire(pid_t pid, int signal, const std::string& cause);
  Round round() const { return round_; }
  int running() const;  // How many workers of the round run.
  // How many standbys could take a place now.
  int standbys_ready() const;
  // Takes the status of each worker and standby that has ended. The loop does so by itself, a
  // little later.
  void reap();
  // Call after SIGCHLD: takes the statuses of the other children that have ended: orphans of
  // workers that this process has adopted, and helpers of StackDump.
  void reap_orphans();
  // Kills what is left of the round, and releases its memory, pipes and files. Parked workers of
  // `keep` and standbys stay, with their descendants. Returns false if something still lived after
  // `limit`: call again. on_exit is not called for workers that are killed here.
  bool clear(const std::set<int>& keep, Duration limit);
  // The same for everything but the processes that write snapshots.
  bool clear_all(Duration limit);
  // Kills the writers of snapshots. Call clear_all() afterwards.
  void give_writers_up() { writers_.give_up(); }
  // Gives up the processes that clear(*keep), or clear_all() if `keep` is empty, could not kill.
  // Prints which they are, what the kernel holds them in, and how long ago SIGKILL was sent.
  void give_up(const std::optional<std::set<int>>& keep, Duration killed_for);
  // Those that were given up and still live, as give_up() has printed them; empty if there are
  // none.
  std::string unkillable() const;
  // Removes the status line.
  void finish_output();
  // Writes the files of this node's output.
  FileWriter& files() { return output_.writer(); }
  // Sentences about what the workers were waiting for in the round that was cleared last. Empty if
  // it ended well.
  std::vector<std::string> take_operations() { return std::exchange(operations_, {}); }

 private:
  std::shared_ptr<Worker> find(pid_t pid) const;
  std::shared_ptr<Worker> of_local_rank(int local_rank) const;
  std::shared_ptr<Worker> take_waiting(std::vector<std::shared_ptr<Worker>>& kept, int local_rank);
  void on_exit(const Worker& worker, const WorkerExit& exit);
  void on_message(Worker& worker, const wire::WorkerMessage& message);
  void take_snapshot(Worker& worker, const wire::SubmitSnapshot& snapshot);
  void send_checkpoint_request(Worker& worker);
  void start_timers(asio::io_context& io);
  void fill_standbys();
  // kill_descendants(), here and in all tasks.
  bool kill_all_but(const std::vector<pid_t>& kept, Duration limit);
  std::vector<pid_t> kept_pids(const std::set<int>& keep) const;
  void abandon(const std::set<int>& keep = {});
  void watch_states();
  void keep_flights();
  void print(const std::string& text);

  const config::JobSpec spec_;
  const std::vector<std::string> environment_;
  const Events events_;
  NodeOutput output_;
  StatusLine status_;
  WorkerContext context_;
  SnapshotWriters writers_;
  bool checkpoint_wanted_ = false;  // No worker has been told yet.
  Round round_ = kNoRound;
  std::unique_ptr<RoundMemory> memory_;  // Empty: no round runs here.
  Rank first_rank_ = 0;                  // Of this node in the round.
  TraceReader trace_;                    // Reads `memory_`.
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::shared_ptr<Worker>> standbys_;
  int standbys_started_ = 0;
  bool standbys_due_ = true;  // No standby was started since the round began.
  bool starting_ = false;
  std::vector<std::string> operations_;
  std::vector<wire::SavedShare> saved_;
  std::string cannot_start_;  // Why no worker can be started; empty: they can.
  std::optional<FileTimers> timers_;
  StateWatch states_;
  net::Timer states_timer_;
  net::Timer orphans_timer_;
  std::map<pid_t, std::string> given_up_;  // Still alive although SIGKILL was sent; in words.
};

}  // namespace ddp::agent
