// ddp-run status and the daemon's pages, for a running job.
#include <arpa/inet.h>

#include <nlohmann/json.hpp>

#include "tests/process/ddp_run_fixture.h"
#include "tests/support/live_events.h"
#include "tests/support/prometheus.h"
#include "tests/support/raw_client.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

class DdpRunStatus : public DdpRunTest {
 protected:
  static Finished status(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {bin("ddp-run"), "status"});
    return run(arguments);
  }
  // Once the workers run.
  Process& start_job(int port) {
    Process& job = start(node(1, port,
                              {"--nproc-per-node", "2", "--no-python", "sh", "-c",
                               "echo up > $OUT/up.$RANK; exec sleep 600"}));
    file("up.0");
    file("up.1");
    return job;
  }
  // What a browser shows when its feed has ended.
  static nlohmann::json shown_last(LiveEvents& events, nlohmann::json state) {
    for (;;) {
      const auto [name, change] = events.next();
      if (name.empty()) return state;
      EXPECT_EQ(name, "change");
      state.merge_patch(change);
    }
  }
};

TEST_F(DdpRunStatus, ShowsARunningJob) {
  const int port = free_port();
  Process& job = start_job(port);
  const std::string endpoint = "127.0.0.1:" + std::to_string(port);
  const Finished table = status({endpoint});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("job job (sh): running, round 0, 2 workers, 1 node"));
  EXPECT_THAT(table.out, HasSubstr(host()));
  EXPECT_THAT(table.out, HasSubstr("in_round"));
  const Finished json = status({"--json", endpoint});
  EXPECT_EQ(json.status, 0) << json.err;
  const auto page = nlohmann::json::parse(json.out);
  EXPECT_EQ(page["jobs"][0]["nodes"][0]["ranks"], nlohmann::json({0, 1}));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

TEST_F(DdpRunStatus, MetricsAreWhatAScraperReadsAndCountersOnlyGrow) {
  const int port = free_port();
  Process& job = start_job(port);
  const auto scrape = [&] { return PrometheusPage(http_body(http_get(port, "/metrics"))); };
  const PrometheusPage before = scrape();
  EXPECT_EQ(before.value("ddp_job_world_size", R"({job="job"})"), 2);
  EXPECT_EQ(before.value("ddp_job_state", R"({job="job",state="running"})"), 1);
  const Finished keys = run({bin("ddp-rendezvous"), "keys", "127.0.0.1:" + std::to_string(port)});
  EXPECT_EQ(keys.status, 0) << keys.err;
  const PrometheusPage after = scrape();
  EXPECT_GT(after.value("ddp_store_requests_total"), before.value("ddp_store_requests_total"));
  for (const auto& [name, family] : before.families()) {
    if (family.type != "counter") continue;
    for (const auto& [labels, value] : family.samples) EXPECT_GE(after.value(name, labels), value);
  }
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

TEST_F(DdpRunStatus, ItsHistoryHasTheRounds) {
  const int port = free_port();
  Process& job = start_job(port);
  const auto page = nlohmann::json::parse(http_body(http_get(port, "/history")));
  const auto round = page.at("jobs").at(0).at("rounds").at(0);
  EXPECT_EQ(round.at("reason"), "first round");
  EXPECT_EQ(round.at("world_size"), 2);
  EXPECT_GE(page["jobs"][0].at("elapsed_ms"), round.at("began_ms"));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

TEST_F(DdpRunStatus, AWatchShowsTheJobUntilTheDaemonIsGone) {
  const int port = free_port();
  Process& job = start_job(port);
  Process& watch =
      start({bin("ddp-run"), "status", "--watch", "127.0.0.1:" + std::to_string(port)});
  const auto times_shown = [&] {
    int times = 0;
    const std::string out = watch.out();
    for (std::size_t at = 0; (at = out.find("job job (sh): running", at)) != std::string::npos;
         ++at)
      ++times;
    return times;
  };
  EXPECT_TRUE(wait_until([&] { return times_shown() >= 2; }, 20s)) << watch.out();
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(watch.wait(), 0);
  EXPECT_THAT(watch.out(), HasSubstr("The rendezvous is gone: the job is over"));
  EXPECT_EQ(watch.out().find('\x1b'), std::string::npos) << "only a terminal is commanded";
  EXPECT_EQ(status({"--watch", "127.0.0.1:" + std::to_string(port)}).status, 67);
  EXPECT_EQ(status({"--watch", "--json", "127.0.0.1:" + std::to_string(port)}).status, 2);
}

TEST_F(DdpRunStatus, ABrowserSeesHowTheJobEnds) {
  const int port = free_port();
  Process& job =
      start(node(1, port,
                 {"--no-python", "sh", "-c",
                  "echo up > $OUT/up.0; until [ -e $OUT/go ]; do sleep 0.05; done; exit 3"}));
  file("up.0");
  LiveEvents events(port);
  const nlohmann::json whole = events.next().second;
  EXPECT_EQ(whole["jobs"]["job"]["state"], "running");
  folder_.write("go", "");
  EXPECT_EQ(job.wait(), 3);
  const nlohmann::json last = shown_last(events, whole)["jobs"]["job"];
  EXPECT_EQ(last["state"], "finished");
  EXPECT_EQ(last["exit_code"], 3);
  EXPECT_THAT(last["first_failure"].value("text", ""), HasSubstr("exit code 3"));
}

// The coordinator has forgotten a job that its last node has left.
TEST_F(DdpRunStatus, ABrowserSeesThatTheJobWasStopped) {
  const int port = free_port();
  Process& job = start_job(port);
  LiveEvents events(port);
  const nlohmann::json whole = events.next().second;
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  const nlohmann::json last = shown_last(events, whole)["jobs"]["job"];
  EXPECT_EQ(last["state"], "finished");
  EXPECT_EQ(last["exit_code"], 143);
  EXPECT_THAT(last.value("summary", ""), HasSubstr("SIGTERM"));
  EXPECT_EQ(last["nodes"].size(), 1u);
}

TEST_F(DdpRunStatus, NobodyAnswers) {
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const Finished asked = status({endpoint});
  EXPECT_EQ(asked.status, 67);
  EXPECT_THAT(asked.err, HasSubstr("nothing answers at " + endpoint));
}

TEST_F(DdpRunStatus, AStrangerAnswers) {
  // etcd, a web server, sshd: whoever speaks first and speaks something else.
  const ListeningSocket socket;
  std::thread stranger([&socket] {
    const int client = ::accept(socket.fd(), nullptr, nullptr);
    EXPECT_EQ(::send(client, "SSH-2.0-OpenSSH\r\n", 17, MSG_NOSIGNAL), 17);
    ::close(client);
  });
  const Finished asked = status({"127.0.0.1:" + std::to_string(socket.port())});
  stranger.join();
  EXPECT_EQ(asked.status, 66);
  EXPECT_THAT(asked.err, HasSubstr("is not a rendezvous: it does not speak HTTP"));
}

}  // namespace
}  // namespace ddp::test
