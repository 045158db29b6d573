#pragma once

#include <functional>
#include <memory>

#include "worker/ddp/state/elastic_state.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Trains in one round.
using TrainRound = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

// Runs train(group) in each round of the job until it returns, in this same process: Horovod
// Elastic's run(). Before each call all ranks have the state of the last commit.
//
// When a rank is lost, whatever collective train() is in throws CollectiveError on all others, at
// once. train() lets it through and with it destroys all that has the group: the
// DistributedDataParallel, hooks, samplers of the group's size. What is in `state` outlives that.
// The next call comes with the group of the next round, which may have another size and gives this
// process perhaps another rank.
//
// Nodes that join: training goes on, and the round ends after the next commit, or without one when
// the time of ddp-run --scale-up-timeout is over.
//
// Throws what train() throws, after telling the agent and the other ranks; CollectiveError where
// ElasticWorker::leave() does. Without an agent train() is called once.
//
// What there is besides the group (this round's environment, device groups to abort with it) is in
// the ElasticWorker.
void run_elastic(ElasticWorker& worker, ElasticState& state, const TrainRound& train);
void run_elastic(ElasticState& state, const TrainRound& train,
                 const ElasticWorkerOptions& options = {});

}  // namespace ddp
