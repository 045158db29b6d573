#pragma once

#include <signal.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <asio/io_context.hpp>

#include "agent/core/agent_core.h"
#include "agent/process/cpu_binding.h"
#include "agent/process/log_files.h"
#include "agent/process/memory_kills.h"
#include "agent/process/node_output.h"
#include "agent/process/output_capture.h"
#include "agent/process/process_watch.h"
#include "agent/process/spawn_program.h"
#include "agent/process/stack_dump.h"
#include "agent/process/task_hosts.h"
#include "agent/process/worker_channel.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

class Worker;

// What all workers of a node have in common.
struct WorkerContext {
  asio::io_context& io;
  const config::JobSpec& spec;
  const std::vector<std::string>& inherited_environment;
  NodeOutput& output;
  int usable_cores = 1;
  MemoryKills memory_kills;
  int snapshots = 0;         // How many snapshots of one worker are accepted at once.
  std::string error_folder;  // For error files; empty: there can be none.
  // Called once for each process, after all its output has been read.
  std::function<void(const Worker&, const WorkerExit&)> on_exit;
  std::function<void(Worker&, const wire::WorkerMessage&)> on_message;
  // The tasks, if srun has started one for each worker; null: workers are children of this process.
  const TaskHosts* tasks = nullptr;
  std::vector<WorkerCpus> cpus = {};  // By local rank; empty: workers are not bound to any.
  std::string timer_file = {};        // TORCHELASTIC_TIMER_FILE; empty: there are no such timers.
  bool torch_lacks_libuv = false;

  // Null if the worker is not bound. In a task of srun it has the CPUs that srun has given to the
  // task.
  const WorkerCpus* cpus_of(int local_rank) const {
    const auto index = static_cast<std::size_t>(local_rank);
    return tasks == nullptr && local_rank >= 0 && index < cpus.size() ? &cpus[index] : nullptr;
  }
};

// One running process of the job: a worker of a round, one that has parked, or a standby, with its
// output and its control channel. Lives on the thread of `io`; the context outlives it.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  // Starts a worker of this round. Errors are those of spawn(), and kIo if pipes cannot be made. If
  // log files cannot be opened, the console says so and the worker runs without them.
  static Result<std::shared_ptr<Worker>> start(WorkerContext& context,
                                               const wire::RoundStart& round, int local_rank,
                                               int shm_fd);
  // Starts a process that waits for its place in a round. `number` tells it from other standbys of
  // this agent.
  static Result<std::shared_ptr<Worker>> start_standby(WorkerContext& context, int number);

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  int local_rank() const { return local_rank_; }  // -1: a standby.
  // Whether it has said that it can take part in further rounds.
  bool reconfigurable() const { return reconfigurable_; }
  bool said_hello() const { return said_hello_; }
  // Whether it waits for a round: it has parked, or it is a standby that has said hello.
  bool is_waiting() const { return waiting_; }

  // Sends a waiting process into this round.
  void take_place(const wire::RoundStart& round, int local_rank, int shm_fd);
  // Sends a signal to its process group. Does nothing once it has ended. A stopped process is
  // continued, so that it handles the signal.
  void signal(int number);
  // Continues it if it is stopped, so that it reads its orders.
  void resume();
  // Writes the stacks of its threads to the console and its log; takes up to StackDump::kLimit.
  void dump_stacks();
  // Sends SIGKILL, after its stacks are written if that is under way. Its exit has `cause`.
  void kill(const std::string& cause);
  void send(const wire::WorkerOrder& order) { channel_->send(order); }
  // The descriptors of the snapshot for which on_message is being called: see WorkerChannel.
  std::vector<UniqueFd> take_descriptors() { return channel_->take_descriptors(); }
  // Reads what it has written so far.
  void drain_output();
  // The last that it has written to its standard output and its standard error, as far as that has
  // been read.
  std::string recent_output() const { return out_ ? out_->recent() : ""; }
  std::string recent_errors() const { return err_ ? err_->recent() : ""; }
  // Its timer has expired: sends the signal. The exit that follows has `cause`.
  void expire(int number, const std::string& cause);
  // The WorkerExit as if SIGKILL had ended it, while it lives.
  WorkerExit exit_by_kill(const std::string& cause);
  // If it has ended: reads what it left, takes its status and calls on_exit. The loop calls this by
  // itself. False if the status is still to be taken.
  bool reap();
  // Reads what is left and releases everything. If the process is not gone, its exit will not be
  // reported.
  void close();

 private:
  struct Pipes;
  Worker(WorkerContext& context, int local_rank);
  Result<Pipes> make_pipes();
  Result<void> run(Pipes& pipes, std::vector<std::string> environment, std::vector<int> inherited,
                   std::function<OutputCapture::Route(int stream)> route);
  void keep_logs(LogFiles logs);
  void choose_error_file();
  wire::ErrorFile take_error_file();
  Result<SpawnedProcess> spawn_in_task(Pipes& pipes, SpawnRequest request);
  // How the process ended. Empty if it has not, or if nobody can say; `known` is then false.
  std::optional<wire::WorkerEnded> take_status(bool& known);
  void on_message(const wire::WorkerMessage& message);
  WorkerExit describe_exit(int exit_code, int signal, bool core_dumped);
  std::string cause_of(int exit_code, int signal, bool core_dumped, const std::string& message,
                       bool secondary);

  WorkerContext& context_;
  int local_rank_;
  Round round_ = kNoRound;
  pid_t pid_ = 0;
  std::shared_ptr<TaskHost> task_;  // The parent of the process; null: this process.
  bool running_ = false;
  bool said_hello_ = false;
  bool reconfigurable_ = false;
  // The process that has said hello: this one, or one that it has started.
  struct Speaker {
    pid_t pid = 0;
    int signal = 0;  // By which it writes its stacks; 0: none.
  } speaker_;
  bool waiting_ = false;
  std::shared_ptr<ProcessWatch> end_;
  LogFiles logs_;
  std::string error_path_;
  std::shared_ptr<OutputCapture> out_;
  std::shared_ptr<OutputCapture> err_;
  std::shared_ptr<WorkerChannel> channel_;
  wire::WorkerError error_;     // The last error that it has reported.
  std::set<int> sent_signals_;  // Signals sent in this round.
  std::shared_ptr<StackDump> dump_;
  bool kill_after_dump_ = false;
  int kill_signal_ = SIGKILL;
  std::string kill_cause_;
};

}  // namespace ddp::agent
