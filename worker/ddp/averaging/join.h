#pragma once

#include <memory>
#include <vector>

#include "worker/ddp/averaging/distributed_data_parallel_core.h"

namespace ddp {

// Trains with different numbers of batches on the ranks. On every rank:
//
//   {
//     auto join = model.join();
//     for (const Batch& batch : batches) { ...forward, backward, step... }
//   }   // here a rank without further input takes part in what the others do, until all are here
//
// While the scope lives, ranks with input announce their collectives. A rank at the end of the
// scope has joined: it takes part in the others' reductions with zeros (also through the
// communication hook), in their broadcasts of buffers and in the making of buckets. When all have
// joined, the model of the rank that joined last (of several, the highest) is given to all;
// optimizers' states and gradients of ranks that joined earlier are not, and differ; but for the
// model's ZeroRedundancyOptimizer, whose part such a rank goes on to update, with the
// hyper-parameters that it had last.
//
// All ranks enter and leave it; broadcast_buffers() and forwards that broadcast come from the
// lowest rank with input. Not with skip_all_reduce_unused_params. Other collectives of the loop
// (the mean of a loss) would find nobody on the other side: leave them out.
//
// Several models that are trained in one loop (a generator and a discriminator) join together:
//
//   ddp::Join join({&generator.core(), &discriminator.core()}, {});
//
// They are on one group, and a backward is through one of them at a time.
//
// Left by an exception it aborts the group, since the other ranks would wait. The end of the scope
// throws CollectiveError, and with throw_on_early_termination std::runtime_error; finish() does the
// same in a place of one's choice.
class [[nodiscard]] Join {
 public:
  Join(DistributedDataParallelCore& core, const JoinOptions& options) : Join({&core}, options) {}
  // They outlive the scope. std::invalid_argument for none, or models of different groups;
  // std::logic_error where one is in the scope of another join, or cannot be joined.
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
  int exceptions_;  // Under way when the scope was entered.
};

}  // namespace ddp
