// Runs seeded histories of the real coordinator and agents and checks the properties of checker.h.
//
//   sim_test                    20,000 seeds
//   sim_test --seed N           one seed, with its history on standard output
//   sim_test --seeds N --from M seeds M .. M + N - 1, for long runs
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/seeds.h"
#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

Seeds options{{}, 20'000};

std::string complaint(std::uint64_t seed, const std::string& violation) {
  return fmt::format("seed {}: {}\nrepeat it with: sim_test --seed {}\n{}", seed, violation, seed,
                     describe(make_scenario(seed)));
}

TEST(Simulation, EveryHistoryKeepsTheRules) {
  if (options.one) {
    std::fputs(describe(make_scenario(*options.one)).c_str(), stdout);
    const auto violation = Simulation(*options.one, true).run();
    EXPECT_FALSE(violation) << complaint(*options.one, *violation);
    return;
  }
  std::map<int, int> exit_codes;
  std::map<std::string, int> events;
  std::size_t rounds = 0;
  for (std::uint64_t seed = options.from; seed < options.from + options.count; ++seed) {
    Simulation simulation(seed);
    const auto violation = simulation.run();
    EXPECT_FALSE(violation) << complaint(seed, *violation);
    rounds += simulation.rounds();
    for (const auto& [code, count] : simulation.exit_codes()) exit_codes[code] += count;
    for (const auto& [event, count] : simulation.events()) events[event] += count;
  }
  fmt::print("{} seeds, {} rounds; agents exited with", options.count, rounds);
  for (const auto& [code, count] : exit_codes) fmt::print(" {} ({} times)", code, count);
  fmt::print("\n");
  for (const auto& [event, count] : events) fmt::print("  {}: {} times\n", event, count);
  if (options.count < 1'000) return;
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(rounds, options.count);
  for (const int code : {0, 1, 9 + 128, 65, 67, 71, 72, 74, 127, 128 + 15}) {
    EXPECT_TRUE(exit_codes.contains(code)) << "no agent exits with " << code;
  }
  for (const char* event :
       {"commit ordered", "worker commits on request", "stop that keeps workers",
        "stop for a fresh start", "join with a round that runs", "round goes on after a crash",
        "node stops with parked workers", "worker goes on in another round", "parked worker ends",
        "hung worker found", "node comes back with its rank", "ends for lack of progress",
        "collective fails by itself", "round changes for a node", "ends before the first step",
        "rank is late", "spare replaces a late node", "ddp-run ends with its coordinator"}) {
    EXPECT_GT(events[event], static_cast<int>(options.count / 1'000)) << event;
  }
}

// Agents keep their workers running, and the next coordinator learns of the round from them.
TEST(Simulation, ACoordinatorThatComesBackInTimeCostsNothing) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Scenario scenario = make_scenario(seed);
    Random random(seed);
    scenario.job.rules.min_nodes = scenario.job.rules.max_nodes;
    scenario.job.rules.max_restarts = 0;
    scenario.job.coordinator_timeout_ms = 20'000;
    scenario.job.rules.join_timeout_ms = 40'000;
    scenario.with_node_ranks = false;
    scenario.with_replicas = false;
    scenario.node_starts.assign(static_cast<std::size_t>(scenario.job.rules.max_nodes),
                                Duration{0});
    scenario.work = Duration{10'000};
    Fault crash;
    crash.kind = FaultKind::kCoordinatorCrash;
    crash.at = random.ms(500, 9'000);
    crash.length = random.ms(1, 15'000);
    scenario.faults = {crash};
    Simulation simulation(scenario, seed, false);
    const auto violation = simulation.run();
    EXPECT_FALSE(violation) << "seed " << seed << ": " << *violation;
    EXPECT_EQ(simulation.rounds(), 1u) << "seed " << seed;
    EXPECT_EQ(simulation.exit_codes(), (std::map<int, int>{{0, scenario.job.rules.max_nodes}}))
        << "seed " << seed;
  }
}

TEST(Simulation, OneSeedHasOneHistory) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Simulation first(seed);
    Simulation second(seed);
    first.run();
    second.run();
    EXPECT_EQ(first.history(), second.history()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddp::sim

int main(int argc, char** argv) { return ddp::sim::run_tests(argc, argv, ddp::sim::options); }
