// Jobs of three nodes: any of them may be lost, the one that hosts the rendezvous, too.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/process/ddp_run_fixture.h"
#include "tests/support/raw_client.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class DdpRunReplicas : public DdpRunTest {
 protected:
  // Stays until there is a file "go" (of its own: $GO), but ends at once from the last round on.
  // Says where it was.
  Process& start_node(const std::string& nnodes, const Arguments& more = {},
                      std::map<std::string, std::string> variables = {}) {
    Arguments arguments{"--nnodes",  nnodes, "--rdzv-endpoint", endpoint_,
                        "--rdzv-id", "job",  "--last-call",     "30"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back(script_);
    variables["LAST_ROUND"] = std::to_string(last_round_);
    variables["DDP_LOG_LEVEL"] = "info";
    return start(arguments, variables);
  }
  static bool coordinates(Process& node) {
    return node.err().find("coordinates the job from now on") != std::string::npos;
  }
  // Until the loss of any node can be borne.
  bool await_replicas(const std::vector<Process*>& nodes) {
    return wait_until([&] {
      return std::any_of(nodes.begin(), nodes.end(), [this](Process* node) {
        const std::string said = node->err();
        const auto last = said.rfind(" of its ddp-runs keep its record");
        return last != std::string::npos && last > 0 &&
               said[last - 1] == static_cast<char>('0' + keep_record_);
      });
    });
  }
  void await_round(int round, int workers) {
    for (int rank = 0; rank < workers; ++rank) {
      pid_in("pid." + std::to_string(rank) + "." + std::to_string(round));
    }
  }
  // The first one hosts the rendezvous; `variables` are its alone.
  std::vector<Process*> start_nodes(int count, const std::string& nnodes,
                                    const Arguments& more = {},
                                    const std::map<std::string, std::string>& variables = {}) {
    std::vector<Process*> nodes{&start_node(nnodes, more, variables)};
    EXPECT_TRUE(nodes[0]->complains("missing")) << nodes[0]->err();
    while (static_cast<int>(nodes.size()) < count) nodes.push_back(&start_node(nnodes, more));
    await_round(0, count);
    if (keep_record_ > 1) {
      EXPECT_TRUE(await_replicas(nodes)) << said();
    }
    return nodes;
  }

  int last_round_ = 1;
  int keep_record_ = 3;
  const int port_ = free_port();
  std::string endpoint_ = "127.0.0.1:" + std::to_string(port_);
  std::string script_ =
      folder_.script("worker.sh",
                     "echo $$ > $OUT/pid.$RANK.$DDP_ROUND\n"
                     "echo round $DDP_ROUND restarts $TORCHELASTIC_RESTART_COUNT\n"
                     "[ $DDP_ROUND -ge $LAST_ROUND ] && exit 0\n"
                     "while [ ! -f $OUT/${GO:-go} ]; do sleep 0.05; done\n");
};

TEST_F(DdpRunReplicas, TheFirstNodeMayBeKilled) {
  const auto nodes = start_nodes(3, "2:3", {"--max-restarts", "1"});
  nodes[0]->kill(SIGKILL);
  for (const int node : {1, 2}) {
    EXPECT_EQ(nodes[node]->wait(), 0) << nodes[node]->err();
    EXPECT_THAT(nodes[node]->out(), HasSubstr("round 1 restarts 1")) << nodes[node]->err();
  }
  EXPECT_TRUE(coordinates(*nodes[1]) || coordinates(*nodes[2])) << said();
}

// The place where the job began sends those that ask on to its new coordinator.
TEST_F(DdpRunReplicas, TheNextCoordinatorKnowsTheRoundsBefore) {
  last_round_ = 2;
  const auto nodes = start_nodes(3, "3", {"--max-restarts", "2"});
  nodes[0]->kill(SIGKILL);
  Process& again = start_node("3", {"--max-restarts", "2"});
  await_round(1, 3);
  const std::string answer = http_get(port_, "/");
  const auto place = answer.find("Location: http://127.0.0.1:");
  ASSERT_NE(place, std::string::npos) << answer;
  EXPECT_THAT(http_get(port_, "/live"), StartsWith("HTTP/1.1 503")) << "the page has links then";
  const int next = std::stoi(answer.substr(place + 27));
  const std::string page = http_get(next, "/history");
  const auto history = nlohmann::json::parse(http_body(page)).at("jobs").at(0);
  const auto& rounds = history.at("rounds");
  ASSERT_EQ(rounds.size(), 2u) << history;
  EXPECT_EQ(rounds[0].at("reason"), "first round");
  EXPECT_THAT(rounds[0].at("end").get<std::string>(), HasSubstr("lost")) << history;
  EXPECT_GE(rounds[1].at("began_ms"), rounds[0].at("ended_ms"));
  const Finished status = run({bin("ddp-run"), "status", "127.0.0.1:" + std::to_string(port_)});
  EXPECT_THAT(status.out, HasSubstr("job job (")) << status.err;
  EXPECT_THAT(http_get(port_, "/metrics"), StartsWith("HTTP/1.1 200")) << "each daemon has its own";
  folder_.write("go", "");
  for (Process* node : {nodes[1], nodes[2], &again}) EXPECT_EQ(node->wait(), 0) << said();
}

// Nobody is lost, so the round goes on under the new coordinator.
TEST_F(DdpRunReplicas, ARoundOutlivesItsCoordinator) {
  const auto nodes = start_nodes(3, "3");
  RawClient browser(port_);
  browser.send("GET /live HTTP/1.1\r\n\r\n");
  std::string events = browser.receive_some();
  EXPECT_THAT(events, HasSubstr("200 OK"));
  // Its agent and worker go on, and are told of the new coordinator when it does, too.
  nodes[0]->kill(SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return coordinates(*nodes[1]) || coordinates(*nodes[2]); }))
      << said();
  nodes[0]->kill(SIGCONT);
  folder_.write("go", "");
  for (Process* node : nodes) {
    EXPECT_EQ(node->wait(), 0) << said();
    EXPECT_THAT(node->out(), Not(HasSubstr("round 1"))) << said();
  }
  events += browser.receive_all();  // It has ended, too.
  EXPECT_THAT(events, HasSubstr("event: whole"));
}

// The store at which they were about to meet is lost with its coordinator.
TEST_F(DdpRunReplicas, WorkersThatHadNotMetMeetInAnotherRound) {
  script_ = folder_.script("meeting.sh",
                           "echo $$ > $OUT/pid.$RANK.$DDP_ROUND\n"
                           "exec " PARKING_WORKER " meet 1\n");
  const auto nodes = start_nodes(3, "3", {"--max-restarts", "1"});
  nodes[0]->kill(SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return coordinates(*nodes[1]) || coordinates(*nodes[2]); }))
      << said();
  nodes[0]->kill(SIGCONT);
  for (Process* node : nodes) {
    EXPECT_EQ(node->wait(), 0) << said();
    EXPECT_THAT(node->out(), HasSubstr("round 1 rank")) << said();
    EXPECT_THAT(node->out(), HasSubstr("restart 1 memory 1")) << said();
  }
}

// Leaving is not closing, also for the node that hosts the rendezvous. No round is stored and then
// not announced.
TEST_F(DdpRunReplicas, TheFirstNodeMayLeave) {
  const auto nodes = start_nodes(3, "2:3");
  nodes[0]->kill(SIGTERM);
  EXPECT_EQ(nodes[0]->wait(), 128 + SIGTERM) << nodes[0]->err();
  for (const int node : {1, 2}) {
    EXPECT_EQ(nodes[node]->wait(), 0) << nodes[node]->err();
    EXPECT_THAT(nodes[node]->out(), HasSubstr("round 1 restarts 0")) << nodes[node]->err();
  }
}

// Its workers have finished, and then it hosts the rendezvous no longer. The next coordinator does
// not know that they have: for that one, the node is lost.
TEST_F(DdpRunReplicas, AFirstNodeWhosePartIsOverIsNotStartedAgain) {
  const auto nodes =
      start_nodes(3, "3", {}, {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "0"}, {"GO", "go-first"}});
  folder_.write("go-first", "");
  ASSERT_TRUE(nodes[0]->complains("the rendezvous runs here until the others")) << said();
  nodes[0]->kill(SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return coordinates(*nodes[1]) || coordinates(*nodes[2]); }))
      << said();
  nodes[0]->kill(SIGCONT);
  EXPECT_EQ(nodes[0]->wait(), 0) << said();
  EXPECT_EQ(nodes[0]->out().find("restarts"), nodes[0]->out().rfind("restarts")) << "twice";
  for (const int node : {1, 2}) EXPECT_EQ(nodes[node]->wait(), 72) << said();
}

// It takes itself for the first of a job until it hears of the one that goes on.
TEST_F(DdpRunReplicas, TheFirstNodeComesBack) {
  const auto nodes = start_nodes(3, "3", {"--max-restarts", "1"});
  nodes[0]->kill(SIGKILL);
  Process& again = start_node("3", {"--max-restarts", "1"});
  for (Process* node : {nodes[1], nodes[2], &again}) {
    EXPECT_EQ(node->wait(), 0) << said();
    EXPECT_THAT(node->out(), HasSubstr("round 1 restarts 1")) << said();
  }
}

class DdpRunReplicasOfAFile : public DdpRunReplicas {
 protected:
  DdpRunReplicasOfAFile() { endpoint_ = folder_.path() / "meeting"; }
  const Arguments flags_{"--max-restarts", "1",           "--rdzv-backend",
                         "c10d",           "--rdzv-conf", "store_type=file"};
};

TEST_F(DdpRunReplicasOfAFile, TheFirstNodeComesBackToItsOwnPort) {
  const auto nodes = start_nodes(3, "3", flags_);
  nodes[0]->kill(SIGKILL);
  Process& again = start_node("3", flags_);
  for (Process* node : {nodes[1], nodes[2], &again}) {
    EXPECT_EQ(node->wait(), 0) << said();
    EXPECT_THAT(node->out(), HasSubstr("round 1 restarts 1")) << said();
  }
}

TEST_F(DdpRunReplicasOfAFile, TheNextCoordinatorWritesItsPlace) {
  const auto nodes = start_nodes(3, "3", flags_);
  const std::string first = folder_.read("meeting");
  nodes[0]->kill(SIGKILL);
  std::string next;
  const auto is_whole = [&] {  // A heading and an entry.
    next = folder_.read("meeting");
    return next != first && std::ranges::count(next, '\n') == 2;
  };
  ASSERT_TRUE(wait_until(is_whole)) << said();
  Process& late = start_node("3", flags_);
  for (Process* node : {nodes[1], nodes[2], &late}) {
    EXPECT_EQ(node->wait(), 0) << said();
    EXPECT_THAT(node->out(), HasSubstr("round 1 restarts 1")) << said();
  }
  EXPECT_EQ(folder_.read("meeting"), next) << "the late one hosts";
}

// Others get the votes of those that are lost.
TEST_F(DdpRunReplicas, OneCoordinatorAfterTheOtherMayBeLost) {
  last_round_ = 2;
  auto nodes = start_nodes(5, "2:5", {"--max-restarts", "2"});
  nodes[0]->kill(SIGKILL);
  nodes.erase(nodes.begin());
  await_round(1, 4);
  // A new coordinator begins with the voters that it finds, and says so.
  ASSERT_TRUE(wait_until([&] {
    return std::any_of(nodes.begin(), nodes.end(),
                       [](Process* node) { return coordinates(*node); });
  }));
  ASSERT_TRUE(await_replicas(nodes)) << said();
  std::erase_if(nodes, [](Process* node) {
    if (!coordinates(*node)) return false;
    node->kill(SIGKILL);
    return true;
  });
  ASSERT_EQ(nodes.size(), 3u) << said();
  for (Process* node : nodes) {
    EXPECT_EQ(node->wait(), 0) << said();
    EXPECT_THAT(node->out(), HasSubstr("round 2 restarts 2")) << said();
  }
}

// Then only the host has the job's record, as with two nodes.
TEST_F(DdpRunReplicas, CanBeTurnedOff) {
  keep_record_ = 1;
  const auto nodes = start_nodes(
      3, "2:3", {"--max-restarts", "1", "--rdzv-replicas", "1", "--coordinator-timeout", "2"});
  EXPECT_THAT(nodes[0]->err(),
              HasSubstr("is lost, the job waits 2 s for it (--coordinator-timeout)"));
  nodes[0]->kill(SIGKILL);
  for (const int node : {1, 2}) {
    EXPECT_NE(nodes[node]->wait(), 0);
    EXPECT_THAT(nodes[node]->err(), HasSubstr("did not come back within 2 s"));
  }
}

TEST_F(DdpRunReplicas, ImpossibleNumbersAreRefused) {
  for (const auto& [number, hint] :
       {std::pair("2", "write 1"), std::pair("8", "1"), std::pair("none", "none")}) {
    const Finished job = run_job(
        {"--nnodes", "3", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-replicas", number, "true"});
    EXPECT_NE(job.status, 0);
    EXPECT_THAT(job.err, HasSubstr("--rdzv-replicas")) << job.err;
    EXPECT_THAT(job.err, HasSubstr(hint)) << job.err;
  }
}

}  // namespace
}  // namespace ddp::test
