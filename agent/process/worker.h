#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "agent/core/agent_core.h"
#include "agent/process/console.h"
#include "agent/process/log_files.h"
#include "agent/process/output_capture.h"
#include "agent/process/worker_channel.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// What all workers of a node have in common.
struct WorkerContext {
  asio::io_context& io;
  const config::JobSpec& spec;
  const std::vector<std::string>& inherited_environment;
  Console::Pair console;
  int usable_cores = 1;
  // Called once a worker, after all its output has been read.
  std::function<void(const WorkerExit&)> on_exit;
  std::function<void(int local_rank, std::int64_t step)> on_progress;
};

// One running worker: its process, its output, its control channel. Lives on the thread of `io`;
// the context outlives it.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  // Errors are those of spawn(), and kIo when pipes cannot be made. Log files that cannot be opened
  // are told on the console and done without.
  static Result<std::shared_ptr<Worker>> start(const WorkerContext& context,
                                               const wire::RoundStart& round, int local_rank,
                                               int shm_fd);

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  // To its process group; nothing once it has ended. A stopped process is continued, so that it
  // sees the signal.
  void signal(int number);
  void send(const wire::WorkerOrder& order) { channel_->send(order); }
  // If it has ended: reads what it left, takes its status and calls on_exit.
  void reap();
  // Reads what is left and lets go of everything. The process must be gone, or its exit is not
  // told.
  void close();

 private:
  struct Pipes;
  Worker(const WorkerContext& context, int local_rank);
  Result<Pipes> make_pipes();
  void open_logs(const wire::RoundStart& round, Rank rank);
  void capture(Pipes& pipes, const std::string& prefix);
  void wait();
  void on_message(const wire::WorkerMessage& message);

  const WorkerContext& context_;
  const int local_rank_;
  pid_t pid_ = 0;
  bool running_ = false;
  asio::posix::stream_descriptor pidfd_;
  LogFiles logs_;
  std::shared_ptr<OutputCapture> out_;
  std::shared_ptr<OutputCapture> err_;
  std::shared_ptr<WorkerChannel> channel_;
  wire::WorkerError error_;  // The last one it has told.
};

}  // namespace ddp::agent
