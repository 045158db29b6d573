// Runs seeded histories of the ddp-runs that keep a job's record together.
//
//   replicas_sim_test                    a fixed set of seeds
//   replicas_sim_test --seed N           one seed, with its history on standard output
//   replicas_sim_test --seeds N --from M seeds M .. M + N - 1, for long runs; from 1000000000 on,
//   connections are reset, too
#include <cstdint>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/replicas_simulation.h"
#include "tests/sim/seeds.h"

namespace ddp::sim {
namespace {

Seeds options{{}, 1'000};

// A member that is no longer in the group gets the order to take over; one that was stopped learns
// late that it had been elected; a coordinator is lost right after a node has come; a leader that
// hands over has voted for another one; those with the newest log have the oldest term, and then
// again, without ever learning of the newer one; a member without a vote raises its term for ever;
// two groups meet that have begun no round; a second group begins the job before a ddp-run that was
// stopped can tell of the first one's round; a ddp-run leads a group that its agent has left for a
// second job; a leader that has told another one to take over is answered meanwhile.
constexpr std::uint64_t kFoundSomething[] = {20'002'285,  30'030'782,  40'004'124,  40'098'350,
                                             50'009'983,  150'130'185, 150'533'907, 151'218'772,
                                             160'523'374, 170'800'198, 200'575'363};

void run_seeds(std::uint64_t from, std::uint64_t count, ReplicasCoverage& coverage) {
  for (std::uint64_t seed = from; seed < from + count; ++seed) {
    const auto violation = ReplicasSimulation(seed).run(coverage);
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation
                            << "\nrepeat it with: replicas_sim_test --seed " << seed;
  }
}

TEST(ReplicasSimulation, NeverDoTwoCoordinatorsBeginRounds) {
  ReplicasCoverage coverage;
  if (options.one) {
    const auto violation = ReplicasSimulation(*options.one, true).run(coverage);
    EXPECT_FALSE(violation) << *violation;
    return;
  }
  for (const std::uint64_t seed : kFoundSomething) {
    const auto violation = ReplicasSimulation(seed).run(coverage);
    EXPECT_FALSE(violation) << "seed " << seed << ": " << *violation;
  }
  run_seeds(options.from, options.count, coverage);
  if (HasFatalFailure()) return;
  // A long run chooses for itself whether it has resets.
  if (options.from == 1) run_seeds(ReplicasSimulation::kWithResets, options.count / 2, coverage);
  fmt::print(
      "{} seeds, {} rounds, {} take-overs, {} crashes, {} resets, {} new jobs, {} yields, {} "
      "stores of lost "
      "coordinators, "
      "slowest take-over {} ms\n",
      options.count, coverage.rounds, coverage.take_overs, coverage.crashes, coverage.resets,
      coverage.new_jobs, coverage.yields, coverage.failed_stores, coverage.slowest_ms);
  if (options.count < 1'000) return;
  // A simulation in which something never happens proves nothing about it.
  for (const std::uint64_t count : {coverage.rounds, coverage.take_overs, coverage.crashes,
                                    coverage.yields * 10, coverage.failed_stores * 10}) {
    EXPECT_GT(count, options.count / 10);
  }
}

}  // namespace
}  // namespace ddp::sim

int main(int argc, char** argv) { return ddp::sim::run_tests(argc, argv, ddp::sim::options); }
