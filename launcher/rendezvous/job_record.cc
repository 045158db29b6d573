#include "launcher/rendezvous/job_record.h"

#include <nlohmann/json.hpp>

namespace ddp::rendezvous {

void to_json(nlohmann::json& json, const JobRecord& record) {
  json = {{"job_id", record.job_id},
          {"next_round", record.next_round},
          {"restarts", record.restarts},
          {"best_step", record.best_step},
          {"no_progress", record.no_progress}};
  if (record.finished) {
    json["result"] = {{"exit_code", record.result.exit_code},
                      {"summary", record.result.summary},
                      {"report", record.result.report}};
  }
}

void from_json(const nlohmann::json& json, JobRecord& record) {
  record = {};
  json.at("job_id").get_to(record.job_id);
  json.at("next_round").get_to(record.next_round);
  record.restarts = json.value("restarts", 0);
  record.best_step = json.value("best_step", std::int64_t{-1});
  record.no_progress = json.value("no_progress", 0);
  const auto result = json.find("result");
  if (result == json.end()) return;
  record.finished = true;
  result->at("exit_code").get_to(record.result.exit_code);
  record.result.summary = result->value("summary", "");
  record.result.report = result->value("report", "");
}

}  // namespace ddp::rendezvous
