#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct ElasticWorkerOptions {
  ProcessGroupOptions group;
  // false: the agent ends this process with its round, as any program that knows nothing of rounds.
  bool reconfigurable = true;
  // How long leave() waits to hear from the agent that the round is over. The death of a rank is
  // seen here before the agents have spoken of it, so there is always something to wait for.
  std::chrono::milliseconds lost_limit{std::chrono::seconds(30)};
  // The same where nobody is known to be gone: after an operation's timeout.
  std::chrono::milliseconds timeout_limit{std::chrono::seconds(2)};
};

// A process that outlives the rounds of its job: it keeps its memory, leaves the process group of a
// round that has failed, and takes its place in the next one. One for a process, for its whole
// life:
//
//   ElasticWorker worker;
//   for (;;) {
//     auto group = worker.join();                  // Waits for a place, meets the other ranks.
//     try {
//       train(group);
//       return;
//     } catch (const CollectiveError& error) {
//       group.reset();
//       worker.leave(step, error);                 // Throws it again if the round is not over.
//     }
//   }
//
// (join() may throw a CollectiveError, too, when a rank dies meanwhile.) Programs of LibTorch have
// run_elastic() (ddp/state/run_elastic.h), which does this and keeps their state.
//
// The environment of a round is that of the process, overlaid by what the agent says about the
// round: variable("RANK") is right where getenv("RANK") is of the round this process was started
// for. A process that was started as a standby (DDP_STANDBY=1, no RANK) has no place until join()
// gives it one. Without an agent there is one round, that of the environment.
//
// Memory: leave() lets go of the round's shared memory, whose last pages go with the last buffer
// that ProcessGroup::allocate() gave; nothing else of a round stays.
//
// One thread calls, the one that trains; abort() and what says so are for any.
class ElasticWorker {
 public:
  // Says hello. Throws std::invalid_argument naming the variable that is wrong.
  explicit ElasticWorker(ElasticWorkerOptions options = {});
  ~ElasticWorker();
  ElasticWorker(const ElasticWorker&) = delete;
  ElasticWorker& operator=(const ElasticWorker&) = delete;

  // Whether leave() can succeed: there is an agent, and the options allow it.
  bool reconfigurable() const;

  // Waits until there is a round for this process. Known before join() is called: after it has
  // returned, variable() is of that round. Throws std::runtime_error when the agent is gone.
  void wait_for_place();
  // The group of the round; waits for the place first. Collective. Throws as
  // ProcessGroup::from_environment() and wait_for_place() do.
  std::shared_ptr<ProcessGroup> join();

  // Ends this process's part in the round, which failed with `cause`: aborts the group, and returns
  // when the agent has said that the round is over and knows that this process waits for the next
  // one. The caller has let go of its references to the group and of all that holds one. step: of
  // the last commit, -1: none.
  //
  // Throws `cause` where this process cannot go on in another round: without an agent, after a
  // mistake of the program (ranks that disagree), or when the agent has said nothing within the
  // limit of the options. End the process then.
  void leave(std::int64_t step, const CollectiveError& cause);

  // Of the process's environment in this round.
  std::optional<std::string> variable(const std::string& name) const;
  std::int64_t variable_or(const std::string& name, std::int64_t otherwise) const;
  Round round() const;

  // Another group of this round, which is to fail with it: for memory of a device. Any thread.
  void attach(const std::shared_ptr<ProcessGroup>& group);
  // Aborts the groups of this round, and each that is still made in it. Any thread.
  void abort(const std::string& reason);

  // The agent wants a commit, because nodes are to join. committed() is its answer, and is called
  // after each commit anyway: it is also what shows the agent that this process makes progress.
  // Any thread.
  bool commit_requested() const;
  void committed(std::int64_t step);
  // How often a checkpoint at the next step boundary was asked for, in all rounds. Any thread.
  std::int64_t checkpoint_requests() const;

  ControlChannel& channel();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
