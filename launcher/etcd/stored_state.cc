#include "launcher/etcd/stored_state.h"

#include <nlohmann/json.hpp>

namespace ddp::etcd {
namespace {

using nlohmann::json;

std::string dump(const json& object) {
  // Host names and exception texts need not be UTF-8.
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

template <typename Read>
auto guarded(const char* what, std::string_view text, Read read) -> Result<decltype(read(json()))> {
  try {
    const json object = json::parse(text);
    if (!object.is_object()) {
      return make_error(Errc::kCorrupt, "{}: not a JSON object: {}", what, text.substr(0, 200));
    }
    return read(object);
  } catch (const json::exception& error) {
    return make_error(Errc::kCorrupt, "{}: {}: {}", what, error.what(), text.substr(0, 200));
  }
}

}  // namespace

Keys keys_of(std::string_view prefix, std::string_view job_id) {
  std::string base(prefix);
  if (!base.ends_with('/')) base += '/';
  base += job_id;
  return {.leader = base + "/leader", .state = base + "/state"};
}

std::string to_json(const Leader& leader) {
  return dump({{"node_id", leader.node_id},
               {"host", leader.host},
               {"address", leader.address},
               {"port", leader.port}});
}

Result<Leader> parse_leader(std::string_view text) {
  return guarded("the coordinator's address", text, [](const json& object) {
    return Leader{.node_id = object.value("node_id", ""),
                  .host = object.value("host", ""),
                  .address = object.at("address").get<std::string>(),
                  .port = object.at("port").get<int>()};
  });
}

std::string to_json(const StoredState& state) {
  const rendezvous::JobRecord& record = state.record;
  json object{{"job_id", record.job_id},           {"next_round", record.next_round},
              {"restarts", record.restarts},       {"best_step", record.best_step},
              {"no_progress", record.no_progress}, {"coordinators", state.coordinators}};
  if (record.finished) {
    object["result"] = {{"exit_code", record.result.exit_code},
                        {"summary", record.result.summary},
                        {"report", record.result.report}};
  }
  return dump(object);
}

Result<StoredState> parse_state(std::string_view text) {
  return guarded("the job's record", text, [](const json& object) {
    StoredState state;
    rendezvous::JobRecord& record = state.record;
    record.job_id = object.at("job_id").get<std::string>();
    record.next_round = object.at("next_round").get<Round>();
    record.restarts = object.value("restarts", 0);
    record.best_step = object.value("best_step", std::int64_t{-1});
    record.no_progress = object.value("no_progress", 0);
    state.coordinators = object.value("coordinators", 0);
    if (const auto result = object.find("result"); result != object.end()) {
      record.finished = true;
      record.result.exit_code = result->at("exit_code").get<int>();
      record.result.summary = result->value("summary", "");
      record.result.report = result->value("report", "");
    }
    return state;
  });
}

}  // namespace ddp::etcd
