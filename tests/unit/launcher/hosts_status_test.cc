// The status line of --hosts: what the rendezvous knows, as one line.
#include "launcher/hosts/hosts_status.h"

#include <gtest/gtest.h>

namespace ddp::hosts {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

rendezvous::JobStatus job_of(Round round, int restarts) {
  rendezvous::JobStatus job;
  job.round = round;
  job.world_size = 8;
  job.restarts = restarts;
  job.max_restarts = 3;
  for (const int rank : {0, 1, -1}) {
    rendezvous::NodeStatus node;
    node.group_rank = rank;
    job.nodes.push_back(node);
  }
  return job;
}

TEST(HostsStatusText, IsOfAllNodesOfTheRound) {
  HostsStatusText status;
  rendezvous::JobStatus job = job_of(0, 0);
  EXPECT_EQ(status.text(kStart, job), "round 0 | 2 nodes | 8 workers");
  job.nodes[0].step = 10;
  job.nodes[0].loss = 0.25;
  EXPECT_EQ(status.text(kStart, job), "round 0 | 2 nodes | 8 workers | step 10 | loss 0.25");
  job.nodes[1].step = 30;
  job.nodes[1].loss = 0.75;
  job.nodes[1].total_steps = 50;
  job.nodes[2].step = 99;  // A spare's, from a round before.
  EXPECT_EQ(status.text(kStart + Duration(1'000), job),
            "round 0 | 2 nodes | 8 workers | step 30/50 | 20.0 steps/s | ETA 0:01 | loss 0.5");
}

TEST(HostsStatusText, ANewRoundBeginsAnew) {
  HostsStatusText status;
  rendezvous::JobStatus job = job_of(0, 0);
  job.nodes[0].step = 10;
  status.text(kStart, job);
  EXPECT_EQ(status.text(kStart, job_of(1, 1)), "round 1 (restart 1 of 3) | 2 nodes | 8 workers");
}

TEST(HostsStatusText, SaysWhatIsWaitedFor) {
  HostsStatusText status;
  rendezvous::JobStatus job;
  job.waiting_for = "1 of 2 nodes";
  EXPECT_EQ(status.text(kStart, job), "waiting for 1 of 2 nodes");
  // None of the names in it may command the terminal.
  job.waiting_for = "n\x1b[2J\n";
  EXPECT_EQ(status.text(kStart, job), "waiting for n [2J ");
}

}  // namespace
}  // namespace ddp::hosts
