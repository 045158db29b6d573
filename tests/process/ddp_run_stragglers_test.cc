// Ranks that compute longer than the others: what ddp-run says of them, and how a spare takes the
// place of their node. It takes half a minute to be sure that a rank is late.
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class DdpRunStragglers : public DdpRunTest {
 protected:
  // One of three nodes with a worker each, or a spare.
  Process& start_node(const std::string& name, const Arguments& flags, const Arguments& worker) {
    Arguments arguments = node(3, port_, flags);
    arguments.insert(arguments.end(), worker.begin(), worker.end());
    Process& started = start(arguments, {{"TEST_NODE", name}});
    return started;
  }
  // In this order, so that a is the node with the rendezvous, and d the spare.
  void start_nodes(const Arguments& flags, const Arguments& worker, bool with_spare) {
    a_ = &start_node("a", flags, worker);
    ASSERT_TRUE(wait_until([this] { return !status().is_null(); })) << said();
    b_ = &start_node("b", flags, worker);
    ASSERT_TRUE(wait_until([this] { return nodes() == 2; })) << said();
    c_ = &start_node("c", flags, worker);
    ASSERT_TRUE(wait_until([this] { return status()["state"] == "running"; })) << said();
    if (with_spare) d_ = &start_node("d", flags, worker);
  }
  nlohmann::json status() {
    const Finished page =
        run({bin("ddp-run"), "status", "--json", "127.0.0.1:" + std::to_string(port_)});
    if (page.status != 0) return nullptr;
    const auto jobs = nlohmann::json::parse(page.out)["jobs"];
    return jobs.empty() ? nlohmann::json() : jobs[0];
  }
  std::size_t nodes() {
    const auto job = status();
    return job.is_null() ? 0 : job["nodes"].size();
  }
  void end() {
    folder_.write("end", "\n");
    for (Process* process : {a_, b_, c_, d_}) {
      if (process == nullptr) continue;
      EXPECT_EQ(process->wait(), 0) << process->err();
    }
  }

  const int port_ = free_port();
  Process* a_ = nullptr;
  Process* b_ = nullptr;
  Process* c_ = nullptr;
  Process* d_ = nullptr;
};

TEST_F(DdpRunStragglers, ARankThatIsLateIsNamedAndReplacedByASpare) {
  start_nodes({"--exclude-stragglers", "1.5", "--scale-up-timeout", "5"}, {LATE_WORKER, "50", "20"},
              true);
  folder_.write("slow.b", "\n");
  nlohmann::json late;
  const auto is_named = [&] {
    late = status()["late"];
    return late.size() == 1;
  };
  ASSERT_TRUE(wait_until(is_named)) << said();
  EXPECT_EQ(late[0]["rank"], 1);
  EXPECT_GT(late[0]["computes_ms"].get<double>(), 1.2 * late[0]["others_ms"].get<double>());
  EXPECT_TRUE(a_->complains("ddp-run: rank 1 (" + host() + ") is late: it computes ")) << said();
  EXPECT_TRUE(
      a_->complains("round 1: rank 1 (" + host() + ") is late; " + host() + " takes its place"))
      << said();
  EXPECT_EQ(status()["restarts"], 0);
  end();
  // The lines of one node, because each one prints the reason of the round.
  EXPECT_THAT(b_->err() + c_->err() + d_->err(), Not(HasSubstr("is late: ")));
  EXPECT_THAT(a_->err(), HasSubstr("was late for "));
}

TEST_F(DdpRunStragglers, EqualRanksAreNotLate) {
  start_nodes({}, {LATE_WORKER, "50", "60"}, false);
  const TimePoint end_of_test = Clock::now() + 40s;
  wait_until([&] { return Clock::now() >= end_of_test; });
  end();
  EXPECT_THAT(said(), Not(HasSubstr("late")));
}

}  // namespace
}  // namespace ddp::test
