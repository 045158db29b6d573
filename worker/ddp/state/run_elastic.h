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
// once. train() must let it pass, and so destroys everything that holds the group: the
// DistributedDataParallel, hooks, samplers of the group's size. What is in `state` outlives that.
// The next call gets the group of the next round, which may have another size and may give this
// process another rank.
//
// When nodes join, training continues, and the round ends after the next commit, or without one
// when ddp-run's --scale-up-timeout is over.
//
// Throws what train() throws, after telling the agent and the other ranks; CollectiveError where
// ElasticWorker::leave() does. Without an agent train() is called once.
//
// The ElasticWorker has everything else of the round: its environment, and the device groups to
// abort with the group.
void run_elastic(ElasticWorker& worker, ElasticState& state, const TrainRound& train);
void run_elastic(ElasticState& state, const TrainRound& train,
                 const ElasticWorkerOptions& options = {});

// One of these rounds, over a group of one's own and perhaps without an agent: gives all ranks the
// state of the last commit, then calls train(group).
void run_round(const std::shared_ptr<ProcessGroup>& group, ElasticState& state,
               const TrainRound& train, ElasticWorker* worker = nullptr);

}  // namespace ddp
