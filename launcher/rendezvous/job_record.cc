#include "launcher/rendezvous/job_record.h"

#include <nlohmann/json.hpp>

namespace ddp::rendezvous {

static void to_json(nlohmann::json& json, const NodeFailureRecord& failure) {
  json = {{"node_id", failure.node_id},     {"host", failure.host},
          {"node_rank", failure.node_rank}, {"shares_its_host", failure.shares_its_host},
          {"age_ms", failure.age_ms},       {"text", failure.text}};
}
static void from_json(const nlohmann::json& json, NodeFailureRecord& failure) {
  failure.node_id = json.value("node_id", "");
  failure.host = json.value("host", "");
  failure.node_rank = json.value("node_rank", -1);
  failure.shares_its_host = json.value("shares_its_host", false);
  failure.age_ms = json.value("age_ms", std::int64_t{0});
  failure.text = json.value("text", "");
}
static void to_json(nlohmann::json& json, const LeftOut& left_out) {
  json = {{"host", left_out.host}, {"reason", left_out.reason}};
}
static void from_json(const nlohmann::json& json, LeftOut& left_out) {
  left_out = {.host = json.value("host", ""), .reason = json.value("reason", "")};
}

void to_json(nlohmann::json& json, const JobRecord& record) {
  json = {{"job_id", record.job_id},
          {"next_round", record.next_round},
          {"restarts", record.restarts},
          {"best_step", record.best_step},
          {"no_progress", record.no_progress}};
  if (!record.node_failures.empty()) json["node_failures"] = record.node_failures;
  if (!record.left_out.empty()) json["left_out"] = record.left_out;
  if (record.finished) {
    json["result"] = {{"exit_code", record.result.exit_code},
                      {"summary", record.result.summary},
                      {"report", record.result.report},
                      {"error", record.result.error}};
  }
}

void from_json(const nlohmann::json& json, JobRecord& record) {
  record = {};
  json.at("job_id").get_to(record.job_id);
  json.at("next_round").get_to(record.next_round);
  record.restarts = json.value("restarts", 0);
  record.best_step = json.value("best_step", std::int64_t{-1});
  record.no_progress = json.value("no_progress", 0);
  record.node_failures = json.value("node_failures", std::vector<NodeFailureRecord>{});
  record.left_out = json.value("left_out", std::vector<LeftOut>{});
  const auto result = json.find("result");
  if (result == json.end()) return;
  record.finished = true;
  result->at("exit_code").get_to(record.result.exit_code);
  record.result.summary = result->value("summary", "");
  record.result.report = result->value("report", "");
  record.result.error = result->value("error", "");
}

}  // namespace ddp::rendezvous
