// Runs seeded histories of the real coordinator and agents and checks what must hold in all of
// them.
//
//   sim_test                    a fixed set of seeds
//   sim_test --seed N           one seed, with its history on standard output
//   sim_test --seeds N --from M seeds M .. M + N - 1, for long runs
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

struct Options {
  std::optional<std::uint64_t> seed;
  std::uint64_t seeds = 3'000;
  std::uint64_t from = 1;
};
Options options;

std::string complaint(std::uint64_t seed, const std::string& violation) {
  return fmt::format("seed {}: {}\nrepeat it with: sim_test --seed {}\n{}", seed, violation, seed,
                     describe(make_scenario(seed)));
}

TEST(Simulation, EveryHistoryKeepsTheRules) {
  if (options.seed) {
    std::fputs(describe(make_scenario(*options.seed)).c_str(), stdout);
    const auto violation = Simulation(*options.seed, true).run();
    EXPECT_FALSE(violation) << complaint(*options.seed, *violation);
    return;
  }
  std::map<int, int> exit_codes;
  std::size_t rounds = 0;
  for (std::uint64_t seed = options.from; seed < options.from + options.seeds; ++seed) {
    Simulation simulation(seed);
    const auto violation = simulation.run();
    EXPECT_FALSE(violation) << complaint(seed, *violation);
    rounds += simulation.rounds();
    for (const auto& [code, count] : simulation.exit_codes()) exit_codes[code] += count;
  }
  fmt::print("{} seeds, {} rounds; agents exited with", options.seeds, rounds);
  for (const auto& [code, count] : exit_codes) fmt::print(" {} ({} times)", code, count);
  fmt::print("\n");
  if (options.seeds < 1'000) return;
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(rounds, options.seeds);
  for (const int code : {0, 1, 9 + 128, 65, 67, 71, 72, 74, 127, 128 + 15}) {
    EXPECT_TRUE(exit_codes.contains(code)) << "no agent exits with " << code;
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

bool number(std::string_view text, std::uint64_t& value) {
  const auto end = text.data() + text.size();
  return std::from_chars(text.data(), end, value).ptr == end;
}

bool parse(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    std::uint64_t value = 0;
    if (!number(argv[i + 1], value)) return false;
    if (name == "--seed") {
      options.seed = value;
    } else if (name == "--seeds") {
      options.seeds = value;
    } else if (name == "--from") {
      options.from = value;
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

}  // namespace
}  // namespace ddp::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!ddp::sim::parse(argc, argv)) {
    std::fprintf(stderr, "usage: %s [--seed N | --seeds N --from N]\n", argv[0]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
