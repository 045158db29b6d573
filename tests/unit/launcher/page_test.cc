// What the page shows, and the file that it becomes.
#include "launcher/page/page.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/page/merge_patch.h"
#include "launcher/page/page_document.h"

namespace ddp::page {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The patch, applied by the library's own function, makes `to`.
void expect_patch(const json& from, const json& to, const json& patch) {
  EXPECT_EQ(merge_patch(from, to), patch);
  json made = from;
  made.merge_patch(patch);
  EXPECT_EQ(made, to);
}

TEST(MergePatch, HasWhatChangesAndNothingElse) {
  expect_patch({{"a", 1}, {"b", {{"c", 2}, {"d", 3}}}}, {{"a", 1}, {"b", {{"c", 2}, {"d", 4}}}},
               {{"b", {{"d", 4}}}});
  expect_patch({{"a", 1}, {"b", 2}}, {{"b", 2}, {"c", {{"d", 1}}}},
               {{"a", nullptr}, {"c", {{"d", 1}}}});
  expect_patch({{"a", {1, 2, 3}}}, {{"a", {1, 2, 4}}}, {{"a", {1, 2, 4}}});
  expect_patch({{"a", 1}}, {{"a", 1}}, json::object());
  expect_patch({{"a", 1}}, {{"a", json::object()}}, {{"a", json::object()}});
  expect_patch(nullptr, {{"a", 1}}, {{"a", 1}});
}

const json kStatus = json::parse(R"([
  {"job_id": "j", "state": "running", "late": [{"rank": 3, "host": "b"}],
   "nodes": [{"node_id": "n1", "state": "in_round", "step": 7}, {"node_id": "n0", "state": "in_round", "step": 8}]},
  {"job_id": "k", "state": "waiting", "nodes": []}])");
const json kHistory = json::parse(R"([
  {"job_id": "j", "elapsed_ms": 5000, "forgotten_rounds": 2,
   "rounds": [{"round": 2, "began_ms": 10}, {"round": 3, "began_ms": 20}],
   "checkpoints": [{"round": 3, "step": 40, "bytes": 9}],
   "curves": {"loss": {"interval_ms": 1000, "points": [[0, 2.5, 2, 3], [4, 1, 1, 1]]}}}])");

std::string kind_of(const json& node) {
  const json front{{"node_id", "front"}, {"state", "in_round"}, {"step", 100}};
  json own = node;
  own["node_id"] = "own";
  const json status{{{"job_id", "j"}, {"nodes", {front, own}}}};
  return page_document(status, json::array())["jobs"]["j"]["nodes"]["own"]["kind"];
}

TEST(PageDocument, SaysHowANodeIs) {
  const auto in_round = [](int step, double speed) {
    return json{{"state", "in_round"}, {"step", step}, {"steps_per_second", speed}};
  };
  EXPECT_EQ(kind_of(in_round(71, 10)), "good");
  EXPECT_EQ(kind_of(in_round(70, 10)), "behind");
  EXPECT_EQ(kind_of(in_round(-1, 10)), "good");
  EXPECT_EQ(kind_of({{"state", "in_round"}, {"step", 5}}), "good") << "its speed is not known";
  for (const auto& [state, kind] : std::map<std::string, std::string>{{"lost", "bad"},
                                                                      {"awaited", "bad"},
                                                                      {"stopping", "ending"},
                                                                      {"ending", "ending"},
                                                                      {"succeeded", "done"},
                                                                      {"finished", "done"},
                                                                      {"waiting", "idle"},
                                                                      {"spare", "idle"}}) {
    EXPECT_EQ(kind_of({{"state", state}, {"step", 5}}), kind) << state;
  }
}

// That they have ended does not say that they have succeeded.
TEST(PageDocument, SaysHowTheNodesOfAJobEnded) {
  for (const auto& [exit_code, kind] : std::map<int, std::string>{{0, "done"}, {143, "ended"}}) {
    const json status{{{"job_id", "j"},
                       {"state", "finished"},
                       {"exit_code", exit_code},
                       {"nodes",
                        {{{"node_id", "n"}, {"state", "finished"}, {"step", 5}},
                         {{"node_id", "m"}, {"state", "lost"}, {"step", 5}}}}}};
    const json nodes = page_document(status, json::array())["jobs"]["j"]["nodes"];
    EXPECT_EQ(nodes["n"]["kind"], kind);
    EXPECT_EQ(nodes["m"]["kind"], "bad");
  }
}

TEST(PageDocument, HasObjectsWhereTheOtherPagesHaveLists) {
  const json jobs = page_document(kStatus, kHistory).at("jobs");
  EXPECT_EQ(jobs.size(), 2u);
  const json& job = jobs.at("j");
  EXPECT_EQ(job.at("nodes").at("n1").at("place"), 0);
  EXPECT_EQ(job.at("nodes").at("n0").at("step"), 8);
  EXPECT_EQ(job.at("late").at("3").at("host"), "b");
  EXPECT_EQ(job.at("rounds").at("3").at("began_ms"), 20);
  EXPECT_EQ(job.at("checkpoints").at("3/40").at("bytes"), 9);
  EXPECT_EQ(job.at("elapsed_ms"), 5'000);
  EXPECT_EQ(job.at("curves").at("loss").at("interval_ms"), 1'000);
  EXPECT_EQ(job.at("curves").at("loss").at("gap"), 4);
  EXPECT_EQ(job.at("curves").at("loss").at("points").at("4"), json({1, 1, 1}));
  EXPECT_FALSE(jobs.at("k").contains("rounds"));
}

TEST(PageDocument, KnowsHowJobsHaveEnded) {
  json document = page_document(kStatus, kHistory);
  document["jobs"]["k"]["waiting_for"] = "nodes";
  document["jobs"]["j"]["state"] = "finished";
  document["jobs"]["j"]["exit_code"] = 0;
  end_jobs(document, 143, "stopped by SIGTERM");
  EXPECT_EQ(document["jobs"]["j"]["exit_code"], 0);
  EXPECT_EQ(document["jobs"]["k"]["state"], "finished");
  EXPECT_EQ(document["jobs"]["k"]["exit_code"], 143);
  EXPECT_FALSE(document["jobs"]["k"].contains("waiting_for"));
  json stopped = page_document(kStatus, kHistory);
  end_jobs(stopped, 143, "stopped by SIGTERM");
  EXPECT_EQ(stopped["jobs"]["j"]["nodes"]["n0"]["kind"], "ended");
}

TEST(PageFile, HasTheDocumentInsideAndAsksForNothing) {
  const json document{{"jobs", json::object()}, {"report", "</script><b>&\xff"}};
  const std::string file = page_file(document);
  const std::size_t begin = file.find("type=\"application/json\">") + 24;
  const std::string inside = file.substr(begin, file.find("</script>", begin) - begin);
  EXPECT_EQ(json::parse(inside).at("report"), "</script><b>&\xEF\xBF\xBD");
  EXPECT_EQ(file.size(), live_page().size() + inside.size());
}

TEST(Page, IsOneFile) {
  for (const char* tag : {"<script src", "<link rel=\"stylesheet", "@import", "url("})
    EXPECT_THAT(std::string(live_page()), testing::Not(HasSubstr(tag)));
  EXPECT_THAT(std::string(page_headers()), HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_TRUE(page_headers().ends_with("\r\n"));
}

}  // namespace
}  // namespace ddp::page
