// Runs seeded histories of the store's parser and core against a model made of simple maps.
//
//   store_sim_test                    a fixed set of seeds
//   store_sim_test --seed N           one seed, with its history on standard output
//   store_sim_test --seeds N --from M seeds M .. M + N - 1, for long runs
#include <cstdint>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/seeds.h"
#include "tests/sim/store_simulation.h"

namespace ddp::sim {
namespace {

using wire::c10d::Dialect;
using wire::c10d::Op;

Seeds options{{}, 10'000};

TEST(StoreSimulation, EveryHistoryIsTheModels) {
  StoreCoverage coverage;
  if (options.one) {
    const auto violation = StoreSimulation(*options.one, true).run(coverage);
    EXPECT_FALSE(violation) << *violation;
    return;
  }
  for (std::uint64_t seed = options.from; seed < options.from + options.count; ++seed) {
    const auto violation = StoreSimulation(seed).run(coverage);
    ASSERT_FALSE(violation) << "seed " << seed << ": " << *violation
                            << "\nrepeat it with: store_sim_test --seed " << seed;
  }
  std::uint64_t sum = 0;
  for (std::size_t dialect = 0; dialect < wire::c10d::kDialectCount; ++dialect) {
    for (std::size_t op = 0; op < wire::c10d::kOpCount; ++op) {
      const std::uint64_t count = coverage.requests[dialect][op];
      sum += count;
      if (options.count < 1'000) continue;
      // A simulation in which something never happens proves nothing about it.
      const bool has = wire::c10d::has_op(static_cast<Dialect>(dialect), static_cast<Op>(op));
      EXPECT_EQ(count >= 500, has) << wire::c10d::op_name(static_cast<Op>(op)) << " " << count
                                   << " times in dialect " << dialect;
    }
  }
  fmt::print(
      "{} seeds, {} requests, {} woken, {} pushes, {} closed by the store, {} left, {} with "
      "half a request, {} switched\n",
      options.count, sum, coverage.woken, coverage.pushes, coverage.closes, coverage.disconnects,
      coverage.lost_requests, coverage.switches);
  if (options.count < 1'000) return;
  for (const std::uint64_t count : {coverage.woken, coverage.pushes, coverage.closes,
                                    coverage.lost_requests, coverage.switches}) {
    EXPECT_GT(count, options.count / 10);
  }
}

}  // namespace
}  // namespace ddp::sim

int main(int argc, char** argv) { return ddp::sim::run_tests(argc, argv, ddp::sim::options); }
