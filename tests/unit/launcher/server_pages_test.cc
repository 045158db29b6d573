// The contents of GET /status and GET /metrics, and that the latter has Prometheus' format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/server/metrics_text.h"
#include "launcher/server/pages.h"
#include "tests/support/prometheus.h"

namespace ddp::server {
namespace {

using rendezvous::JobStatus;
using rendezvous::NodeStatus;
using test::PrometheusPage;
using testing::HasSubstr;
using testing::Not;

NodeStatus node(const std::string& name, const std::string& state, int group_rank) {
  NodeStatus made;
  made.node_id = "id-" + name;
  made.host = name;
  made.address = "10.0.0.1";
  made.state = state;
  made.nproc = 4;
  made.group_rank = group_rank;
  made.first_rank = group_rank < 0 ? -1 : 4 * group_rank;
  return made;
}

DaemonFacts facts() {
  JobStatus job;
  job.job_id = "mnist";
  job.program = "train.py";
  job.state = "running";
  job.round = 2;
  job.world_size = 8;
  job.min_nodes = 2;
  job.max_nodes = 4;
  job.restarts = 1;
  job.max_restarts = 3;
  job.failures = 5;
  job.best_step = 120;
  job.nodes = {node("n1", "in_round", 0), node("n2", "lost", 1), node("n3", "spare", -1)};
  job.nodes[0].step = 120;
  job.nodes[0].loss = 0.5;
  job.nodes[0].silent = Duration(250);
  job.first_failure = rendezvous::FailureStatus{.round = 1,
                                                .text = "rank 1 on n1 failed: signal 9 (SIGKILL)",
                                                .host = "n1",
                                                .rank = 1,
                                                .exit_code = 0,
                                                .signal = 9,
                                                .cause = "",
                                                .log_path = ""};
  JobStatus over;
  over.job_id = "done";
  over.state = "finished";
  over.round = 0;
  over.exit_code = 3;
  over.summary = "worker failed";
  over.nodes = {node("n1", "finished", 0)};
  DaemonFacts made;
  made.jobs = {over, job};
  made.store.keys = 12;
  made.store.requests[0] = 7;
  made.store.requests[2] = 2;
  made.running_jobs = 1;
  made.turned_away = 1;
  made.refused[static_cast<std::size_t>(RefusalReason::kOtherUser)] = 4;
  return made;
}

TEST(StatusPage, HasJobsNodesStoreAndFirstFailure) {
  const auto page = nlohmann::json::parse(status_page(facts()));
  const auto& job = page["jobs"][1];
  EXPECT_EQ(job["job_id"], "mnist");
  EXPECT_EQ(job["round"], 2);
  EXPECT_EQ(job["first_failure"]["signal"], 9);
  EXPECT_EQ(job["first_failure"]["round"], 1);
  EXPECT_EQ(job["nodes"][0]["ranks"], nlohmann::json({0, 3}));
  EXPECT_EQ(job["nodes"][0]["loss"], 0.5);
  EXPECT_EQ(job["nodes"][0]["silent_ms"], 250);
  EXPECT_EQ(job["nodes"][1]["state"], "lost");
  EXPECT_FALSE(job["nodes"][1].contains("silent_ms")) << "nobody who could speak";
  EXPECT_FALSE(job["nodes"][1].contains("loss")) << "not a number";
  EXPECT_FALSE(job["nodes"][2].contains("ranks"));
  EXPECT_EQ(page["jobs"][0]["exit_code"], 3);
  EXPECT_EQ(page["store"]["keys"], 12);
  EXPECT_EQ(page["store"]["requests"], 9);
  EXPECT_EQ(page["refused"], nlohmann::json({{"other_user", 4}})) << "only what there was";
}

TEST(StatusPage, NamesThatAreNotTextDoNoHarm) {
  DaemonFacts odd = facts();
  odd.jobs[0].job_id = "\xFF\"\n";
  EXPECT_EQ(nlohmann::json::parse(status_page(odd))["jobs"][0]["job_id"], "\xEF\xBF\xBD\"\n");
}

TEST(MetricsPage, KeepsToTheFormat) {
  const PrometheusPage page(metrics_page(facts()));
  EXPECT_EQ(page.value("ddp_job_round", R"({job="mnist"})"), 2);
  EXPECT_EQ(page.value("ddp_job_state", R"({job="mnist",state="running"})"), 1);
  EXPECT_EQ(page.value("ddp_job_state", R"({job="mnist",state="finished"})"), 0);
  EXPECT_EQ(page.value("ddp_job_nodes", R"({job="mnist"})"), 2) << "a lost one is not connected";
  EXPECT_EQ(page.value("ddp_job_restarts_total", R"({job="mnist"})"), 1);
  EXPECT_EQ(page.value("ddp_job_failures_total", R"({job="mnist"})"), 5);
  EXPECT_EQ(page.value("ddp_job_exit_code", R"({job="done"})"), 3);
  const std::string n1 = R"({job="mnist",node="id-n1",host="n1"})";
  EXPECT_EQ(page.value("ddp_node_step", n1), 120);
  EXPECT_EQ(page.value("ddp_node_loss", n1), 0.5);
  EXPECT_EQ(page.value("ddp_node_silence_seconds", n1), 0.25);
  EXPECT_FALSE(page.families().contains("ddp_node_steps_per_second")) << "no node has a speed";
  EXPECT_FALSE(page.families().contains("ddp_node_total_steps")) << "no node knows their number";
  EXPECT_EQ(page.value("ddp_store_keys"), 12);
  EXPECT_EQ(page.value("ddp_store_requests_total"), 9);
  EXPECT_EQ(page.value("ddp_connections_turned_away_total"), 1);
  EXPECT_EQ(page.value("ddp_refused_total", R"({reason="other_user"})"), 4);
  EXPECT_EQ(page.value("ddp_refused_total", R"({reason="unknown_user"})"), 0);
  double operations = 0;
  for (const auto& [labels, value] : page.families().at("ddp_store_operations_total").samples) {
    operations += value;
  }
  EXPECT_EQ(operations, 9);
}

TEST(MetricsPage, HasLateRanks) {
  DaemonFacts made = facts();
  EXPECT_FALSE(PrometheusPage(metrics_page(made)).families().contains("ddp_rank_late_seconds"));
  made.jobs[1].late = {
      {.rank = 5, .host = "n2", .computes_ms = 200, .others_ms = 100, .since = Duration(61'500)}};
  const PrometheusPage page(metrics_page(made));
  const std::string rank = R"({job="mnist",rank="5",host="n2"})";
  EXPECT_EQ(page.value("ddp_rank_late_seconds", rank), 61.5);
  EXPECT_EQ(page.value("ddp_rank_late_ratio", rank), 2);
  const auto late = nlohmann::json::parse(status_page(made))["jobs"][1]["late"][0];
  EXPECT_EQ(late["rank"], 5);
  EXPECT_EQ(late["since_ms"], 61'500);
}

TEST(MetricsPage, HasTheTimeLeft) {
  DaemonFacts made = facts();
  made.jobs[1].nodes[0].total_steps = 828;
  made.jobs[1].nodes[0].eta_seconds = 85.5;
  const PrometheusPage page(metrics_page(made));
  const std::string n1 = R"({job="mnist",node="id-n1",host="n1"})";
  EXPECT_EQ(page.value("ddp_node_total_steps", n1), 828);
  EXPECT_EQ(page.value("ddp_node_eta_seconds", n1), 85.5);
  const auto node = nlohmann::json::parse(status_page(made))["jobs"][1]["nodes"][0];
  EXPECT_EQ(node["total_steps"], 828);
  EXPECT_EQ(node["eta_seconds"], 85.5);
}

TEST(MetricsPage, OfADaemonThatServesNobody) {
  const PrometheusPage page(metrics_page({}));
  EXPECT_EQ(page.value("ddp_agents"), 0);
  EXPECT_FALSE(page.families().contains("ddp_job_round"));
}

TEST(MetricsPage, AnyNameIsALabel) {
  DaemonFacts odd = facts();
  odd.jobs[0].job_id = "a\\b\"c\nd\xFF} 1";
  const PrometheusPage page(metrics_page(odd));
  EXPECT_EQ(page.value("ddp_job_round", "{job=\"a\\\\b\\\"c\\nd\xEF\xBF\xBD} 1\"}"), 0);
}

TEST(MetricsText, LabelValues) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", ""},
      {"plain", "plain"},
      {"\"\\\n", "\\\"\\\\\\n"},
      {"\xC3\xA4", "\xC3\xA4"},
      {"\xE2\x82\xAC\xF0\x9F\x98\x80", "\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"\xC3", "\xEF\xBF\xBD"},
      {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xF5x", "\xEF\xBF\xBDx"},
      {"\xE2\x82", "\xEF\xBF\xBD\xEF\xBF\xBD"},
  };
  for (const auto& [value, escaped] : cases) EXPECT_EQ(escape_label_value(value), escaped) << value;
}

TEST(MetricsText, AFamilyWithoutSamplesDoesNotAppear) {
  MetricsText text;
  text.family("ddp_a", "gauge", "A.");
  text.sample({}, std::numeric_limits<double>::quiet_NaN());
  text.single("ddp_b_total", "counter", "Line\nand \\.", 3);
  EXPECT_EQ(text.text(),
            "# HELP ddp_b_total Line\\nand \\\\.\n# TYPE ddp_b_total counter\nddp_b_total 3\n");
}

}  // namespace
}  // namespace ddp::server
