// Measures a job of thousands of nodes: simulated time and messages of a join, of a lost node and
// of a new one. The number of messages must grow no faster than the number of nodes.
//
//   scale_sim_test                   1,000 and 10,000 nodes
//   scale_sim_test --nodes N         N and 10 N
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

int small_job = 1'000;

struct Cost {
  std::int64_t ms = 0;    // Simulated, until the last worker is in its round.
  double messages = 0;    // A node, heartbeats excepted.
  double heartbeats = 0;  // Likewise.
};
struct Costs {
  Cost join, loss, growth;
};

// Nodes of one reconfigurable worker each; they come within 1.5 s.
Scenario large_job(int nodes) {
  Scenario scenario;
  config::JobSpec& job = scenario.job;
  job.job_id = "sim";
  job.rules.max_nodes = nodes;
  job.rules.min_nodes = nodes / 2;
  job.rules.max_restarts = 3;
  job.rules.restart_on_start_failure = true;
  job.coordinator_host = "127.0.0.1";
  job.coordinator_port = 29'400;
  scenario.work = Duration{10'000'000};
  scenario.with_plain = false;
  scenario.with_reconfigurable = true;
  scenario.obliging = true;
  scenario.nproc_max = 1;
  return scenario;
}

class LargeJob {
 public:
  explicit LargeJob(int nodes) : nodes_(nodes), simulation_(large_job(nodes), 1, false) {}

  Costs run() {
    Costs costs;
    simulation_.begin();
    mark();
    simulation_.start_nodes(nodes_, Duration{1'500});
    costs.join = until_in_round(0, nodes_);
    simulation_.kill_node(nodes_ / 2);
    costs.loss = until_in_round(1, nodes_ - 1);
    simulation_.start_node(-1);
    costs.growth = until_in_round(2, nodes_);
    EXPECT_FALSE(simulation_.violation()) << *simulation_.violation();
    return costs;
  }

 private:
  void mark() {
    since_ = simulation_.now();
    messages_ = simulation_.messages();
    heartbeats_ = simulation_.heartbeats();
  }
  Cost until_in_round(Round round, int workers) {
    EXPECT_TRUE(simulation_.run_until_in_round(round, workers, Duration{120'000}))
        << "round " << round << " of " << nodes_ << " nodes does not begin";
    const Cost cost{std::chrono::duration_cast<Duration>(simulation_.now() - since_).count(),
                    static_cast<double>(simulation_.messages() - messages_) / nodes_,
                    static_cast<double>(simulation_.heartbeats() - heartbeats_) / nodes_};
    // What is still under way belongs to this round.
    simulation_.run_for(Duration{2'000});
    mark();
    return cost;
  }

  const int nodes_;
  Simulation simulation_;
  TimePoint since_;
  std::size_t messages_ = 0;
  std::size_t heartbeats_ = 0;
};

void print(const char* what, int nodes, const Cost& cost) {
  fmt::print("{:>6} nodes, {}: {} ms, {:.2f} messages and {:.2f} heartbeats a node\n", nodes, what,
             cost.ms, cost.messages, cost.heartbeats);
}

TEST(Scale, MessagesGrowWithTheNumberOfNodesAndNotFaster) {
  const int large_job_nodes = 10 * small_job;
  const Costs small = LargeJob(small_job).run();
  const auto began = std::chrono::steady_clock::now();
  const Costs large = LargeJob(large_job_nodes).run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const auto compare = [&](const char* what, const Cost& few, const Cost& many) {
    print(what, small_job, few);
    print(what, large_job_nodes, many);
    EXPECT_NEAR(many.messages, few.messages, 0.1 * few.messages) << what;
    // Nothing waits for nodes one after the other.
    EXPECT_LE(many.ms, few.ms + few.ms / 2 + 100) << what;
  };
  compare("join", small.join, large.join);
  compare("a node is lost", small.loss, large.loss);
  compare("a node comes in", small.growth, large.growth);
  fmt::print("the {} nodes took {:.1f} s of real time\n", large_job_nodes, took.count());
}

}  // namespace
}  // namespace ddp::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view text = argv[i + 1];
    const bool known = std::string_view(argv[i]) == "--nodes";
    if (!known ||
        std::from_chars(text.data(), text.data() + text.size(), ddp::sim::small_job).ptr !=
            text.data() + text.size()) {
      std::fprintf(stderr, "usage: %s [--nodes N]\n", argv[0]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
