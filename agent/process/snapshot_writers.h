#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>

#include "agent/process/process_watch.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"
#include "common/process/life_signs.h"
#include "common/wire/control_messages.h"

namespace ddp::agent {

// Writes the snapshots of checkpoints that workers hand to their agent: holds the memory, and runs
// `ddp-checkpoint write` on it, even if the worker or its round ends. One at a time for each
// worker, in the order of arrival.
//
// A writer that is ended by a signal is started again, because writing can be repeated. One that
// the kernel holds in a system call says so, and people are told; it gives up by itself after the
// time that the worker allows (SnapshotPlan::timeout). One that shows no sign of life at all is
// given up. The writers belong to no round and run at low priority. If this process is killed, they
// go on alone: they hold all that they need.
//
// Lives on the thread of `io`, in a process that ignores SIGPIPE. Destroying it leaves the writers
// alone.
class SnapshotWriters {
 public:
  // How many snapshots a worker may have under way: one is being written, one waits. While the
  // kernel holds a writer that was given up, and with it a snapshot, further ones are not written.
  static constexpr int kPerWorker = 2;

  struct Settings {
    std::string program;                   // ddp-checkpoint; empty: no snapshot is accepted.
    std::vector<std::string> environment;  // The environment of the writers, NAME=value.
    int runs = 3;                  // How often one snapshot is tried, if signals end its writer.
    Duration quiet_limit{60'000};  // A writer without a sign of life for this long is given up.
    Duration look = LifeSigns::kLook;
    double slow_seconds = 10;  // People are told when a call stands for so long, and twice as long.
  };
  struct Events {
    std::function<void(int under_way)> on_count;         // Called when the number has changed.
    std::function<void(const std::string& text)> print;  // A line for people.
  };
  // Tells the worker. Returns false if the worker is gone.
  using Reply = std::function<bool(const wire::SnapshotWritten&)>;

  SnapshotWriters(asio::io_context& io, Settings settings, Events events);
  ~SnapshotWriters();
  SnapshotWriters(const SnapshotWriters&) = delete;
  SnapshotWriters& operator=(const SnapshotWriters&) = delete;

  // How many snapshots of one worker are accepted at once; 0: none, because there is no program.
  int limit() const { return settings_.program.empty() ? 0 : kPerWorker; }

  // `descriptors`: its memory (a memfd with F_SEAL_SHRINK) and, where `snapshot.locked`, the lock.
  // `worker`: a number that is unique among workers. `name`: for messages. `round`: in which the
  // save began. A snapshot that cannot be accepted is refused through `reply`, from inside this
  // call. If the worker is gone, the outcome is printed.
  void submit(int worker, const std::string& name, Round round,
              const wire::SubmitSnapshot& snapshot, std::vector<UniqueFd> descriptors, Reply reply);
  int under_way() const { return static_cast<int>(jobs_.size()); }
  // The round is over, so a node may be gone: rank 0's writer no longer waits for those that are
  // silent.
  void round_ended();
  // These ranks of that round were lost with their nodes: rank 0's writer does not wait for their
  // shares at all.
  void ranks_lost(Round round, const std::vector<Rank>& ranks);
  // The writers' processes, also those that were given up and still live.
  std::vector<pid_t> pids() const;
  // Kills the writers. What they were writing is lost; earlier checkpoints are not.
  void give_up();

 private:
  struct Job;
  using JobPlace = std::list<Job>::iterator;

  std::string refusal(int worker, const wire::SubmitSnapshot& snapshot,
                      const std::vector<UniqueFd>& descriptors) const;
  void start_next(int worker);
  JobPlace find(pid_t pid);
  void run(JobPlace job);
  bool reap(pid_t pid);
  void on_end(JobPlace job, int exit_code, int signal);
  void leave(JobPlace job, const std::string& why);
  std::string fault_at_look(Job& job);
  std::string held_writers(int worker) const;
  void finish(JobPlace job, wire::SnapshotWritten written);
  void fail(JobPlace job, const std::string& why);
  static void tell(Job& job, const std::string& line);
  static void send_news(const Job& job, const std::string& text);
  void tell_people(const Job& job, const wire::SnapshotWritten& written) const;
  void look_after();

  asio::io_context& io_;
  const Settings settings_;
  const Events events_;
  std::list<Job> jobs_;  // In the order of arrival.
  // Writers that were given up: SIGKILL may not end them as long as the kernel holds them.
  struct Left {
    int worker = 0;
    std::int64_t step = 0;
    std::shared_ptr<ProcessWatch> end = {};
  };
  std::map<pid_t, Left> left_;
  net::Timer timer_;
};

// The path of ddp-checkpoint beside the running program; empty if none is installed there.
std::string installed_writer();

}  // namespace ddp::agent
