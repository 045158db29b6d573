#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct ElasticWorkerOptions {
  ProcessGroupOptions group;
  // false: the agent ends this process with its round, like any program that knows nothing of
  // rounds.
  bool reconfigurable = true;
  // How long leave() waits for the agent to say that the round is over. This process detects a
  // rank's death before the agents have agreed on it, so it always has to wait.
  std::chrono::milliseconds lost_limit{std::chrono::seconds(30)};
  // The same after an operation's timeout, when no rank is known to be gone.
  std::chrono::milliseconds timeout_limit{std::chrono::seconds(2)};
  // Asked 50 times a second while the process waits for a place, for the other ranks, or for the
  // end of a round. Once it returns true, the call that waits throws CollectiveError with kAborted.
  // For the handlers of signals. May be empty.
  std::function<bool()> given_up = {};
  // Called on the channel's thread when the agent has said that the round is over for this process.
  std::function<void()> on_abort = {};
  int stack_signal = 0;  // See wire::Hello.
};

// A process that outlives the rounds of its job: it keeps its memory, leaves the process group of a
// round that has failed, and takes its place in the next one. One per process, for its whole life:
//
//   ElasticWorker worker;
//   for (;;) {
//     auto group = worker.join();                  // Waits for a place, then meets the others.
//     try {
//       train(group);
//       return;
//     } catch (const CollectiveError& error) {
//       group.reset();
//       worker.leave(step, error);                 // Rethrows it if the round is not over.
//     }
//   }
//
// (join() may throw a CollectiveError, too, when a rank dies meanwhile.) Programs of LibTorch have
// run_elastic() (ddp/state/run_elastic.h), which does this and keeps their state.
//
// The environment of a round is that of the process, overlaid by what the agent says about the
// round: use variable("RANK"), because getenv("RANK") belongs to the round that this process was
// started for. A process that was started as a standby (DDP_STANDBY=1, no RANK) has no place until
// join() gives it one. Without an agent there is one round, which the environment describes.
//
// Memory: leave() releases the round's shared memory, whose last pages go with the last buffer from
// ProcessGroup::allocate(). Nothing else of a round stays.
//
// For the training thread, except where a function says any thread.
class ElasticWorker {
 public:
  // Says hello to the agent. Throws std::invalid_argument, which names the wrong variable.
  explicit ElasticWorker(ElasticWorkerOptions options = {});
  ~ElasticWorker();
  ElasticWorker(const ElasticWorker&) = delete;
  ElasticWorker& operator=(const ElasticWorker&) = delete;

  // Whether leave() can succeed: there is an agent, and the options allow it.
  bool reconfigurable() const;

  // Waits until there is a round for this process. Afterwards variable() belongs to that round,
  // even before join(). Throws std::runtime_error if the agent is gone.
  void wait_for_place();
  // Waits for the place and makes the round's group. Collective. Later calls in the same round
  // return the same group while somebody holds it. Throws what ProcessGroup::from_environment() and
  // wait_for_place() throw.
  std::shared_ptr<ProcessGroup> join();

  // Ends this process's part in the round, which failed with `cause`: aborts the group, and returns
  // when the agent has said that the round is over and knows that this process waits for the next
  // one. The caller must first release its references to the group and everything that holds one.
  // step: of the last commit; -1: none.
  //
  // Throws `cause` if this process cannot go on in another round: without an agent, after a mistake
  // of the program (ranks that disagree), or if the agent said nothing within the limit of the
  // options. End the process then.
  void leave(std::int64_t step, const CollectiveError& cause);

  // A variable of the process's environment in this round.
  std::optional<std::string> variable(const std::string& name) const;
  std::int64_t variable_or(const std::string& name, std::int64_t otherwise) const;
  Round round() const;

  // Adds another group that must fail with this round, such as one for device memory. Any thread.
  void attach(const std::shared_ptr<ProcessGroup>& group);
  // Aborts the groups of this round, and each one made later in it. Any thread.
  void abort(const std::string& reason);

  // The agent wants a commit, because nodes wait to join. committed() is the answer. Call it after
  // every commit: it also shows the agent that this process makes progress. Any thread.
  bool commit_requested() const;
  void committed(std::int64_t step);
  // How many times a checkpoint at the next step boundary was requested, in all rounds. Any thread.
  std::int64_t checkpoint_requests() const;

  ControlChannel& channel();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
