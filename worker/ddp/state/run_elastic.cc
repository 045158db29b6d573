#include "worker/ddp/state/run_elastic.h"

#include <exception>

#include <fmt/format.h>

#include "common/base/errc.h"

namespace ddp {
namespace {

// Whether the cause lies with another rank.
bool is_secondary(const CollectiveError& error, const ElasticWorker& worker) {
  return error.code == Errc::kAborted || error.code == Errc::kPeerLost ||
         error.code == Errc::kTimeout ||
         (error.suspect_rank >= 0 && error.suspect_rank != worker.variable_or("RANK", 0));
}

// The next round of the job. Whether it was the last.
bool join_round(ElasticWorker& worker, ElasticState& state, const TrainRound& train) {
  try {
    run_round(worker.join(), state, train, &worker);
    return true;
  } catch (const CollectiveError& error) {
    worker.leave(state.step(), error);
    return false;
  }
}

}  // namespace

void run_round(const std::shared_ptr<ProcessGroup>& group, ElasticState& state,
               const TrainRound& train, ElasticWorker* worker) {
  struct Leave {
    ElasticState& state;
    ~Leave() { state.leave(); }
  };
  const Leave leave{state};
  state.enter(group, worker);
  state.sync();
  train(group);
}

void run_elastic(ElasticWorker& worker, ElasticState& state, const TrainRound& train) {
  try {
    while (!join_round(worker, state, train)) {
    }
  } catch (const CollectiveError& error) {
    worker.channel().error(error.what(), is_secondary(error, worker));
    throw;
  } catch (const std::exception& error) {
    worker.channel().error(error.what(), false);
    worker.abort(fmt::format("rank {}: {}", worker.variable_or("RANK", 0), error.what()));
    throw;
  }
}

void run_elastic(ElasticState& state, const TrainRound& train,
                 const ElasticWorkerOptions& options) {
  ElasticWorker worker(options);
  run_elastic(worker, state, train);
}

}  // namespace ddp
