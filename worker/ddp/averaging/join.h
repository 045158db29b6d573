#pragma once

#include <memory>
#include <vector>

namespace ddp {

class DistributedDataParallelCore;
class JoinCalls;

struct JoinOptions {
  // true: gradients are divided by the size of the group, even when ranks have joined. false: by
  // the number of ranks that still have input. Has no effect on communication hooks, which divide
  // themselves.
  bool divide_by_initial_world_size = true;
  // As soon as one rank joins, its join throws, and so does the next forward on every other rank.
  bool throw_on_early_termination = false;
  // false: join does nothing, for input that is known to be even.
  bool enable = true;
};

// Lets ranks train with different numbers of batches. On every rank:
//
//   {
//     auto join = model.join();
//     for (const Batch& batch : batches) { ...forward, backward, step... }
//   }   // here a rank without input takes part in the others' collectives until all are here
//
// While the scope lives, ranks with input announce their collectives. A rank at the end of the
// scope has joined: it takes part in the others' reductions with zeros (also through the
// communication hook), in their broadcasts of buffers and in rebuilding the buckets. When all ranks
// have joined, all get the model of the rank that joined last (of several, the highest). Ranks that
// joined earlier do not get the last rank's optimizer state and gradients; theirs differ. A
// ZeroRedundancyOptimizer is different: a rank that has joined continues to update its part, with
// the hyper-parameters that it had last.
//
// All ranks enter and leave the scope. Buffers are broadcast from the lowest rank with input.
// Cannot be used with skip_all_reduce_unused_params. Do not issue other collectives in the loop
// (such as the mean of a loss): ranks that have joined do not take part in them.
//
// Several models that are trained in one loop (a generator and a discriminator) join together:
//
//   ddp::Join join({&generator.core(), &discriminator.core()}, {});
//
// They must use the same group, and each backward goes through one of them only.
//
// If an exception leaves the scope, the group is aborted, because the other ranks would wait. The
// end of the scope throws CollectiveError, and std::runtime_error with throw_on_early_termination.
// finish() ends the scope earlier and throws the same.
class [[nodiscard]] Join {
 public:
  Join(DistributedDataParallelCore& core, const JoinOptions& options) : Join({&core}, options) {}
  // The models must outlive the scope. Throws std::invalid_argument for no models, or models of
  // different groups; std::logic_error if a model is in the scope of another join or cannot be
  // joined.
  Join(std::vector<DistributedDataParallelCore*> models, const JoinOptions& options);
  ~Join() noexcept(false);
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  void finish();

 private:
  void shadow_others(bool& is_last);
  void close();

  std::vector<DistributedDataParallelCore*> models_;
  std::shared_ptr<JoinCalls> calls_;  // Null in a group of one.
  bool is_open_;
  int exceptions_;  // In flight when the scope was entered.
};

}  // namespace ddp
