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

// One round. Whether it was the last.
bool run_round(ElasticWorker& worker, ElasticState& state, const TrainRound& train) {
  struct Leave {
    ElasticState& state;
    ~Leave() { state.leave(); }
  };
  try {
    const auto group = worker.join();
    const Leave leave{state};
    state.enter(group, &worker);
    state.sync();
    train(group);
    return true;
  } catch (const CollectiveError& error) {
    worker.leave(state.step(), error);
    return false;
  }
}

}  // namespace

void run_elastic(ElasticWorker& worker, ElasticState& state, const TrainRound& train) {
  try {
    while (!run_round(worker, state, train)) {
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
