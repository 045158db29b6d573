#include "launcher/etcd/stored_state.h"

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace ddp::etcd {
namespace {

using nlohmann::json;

std::string dump(const json& object) {
  // Host names and exception texts need not be UTF-8.
  return dump_json(object);
}

template <typename Read>
auto guarded(const char* what, std::string_view text, Read read) -> Result<decltype(read(json()))> {
  try {
    const json object = parse_json(text);
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
  json object = state.record;
  object["coordinators"] = state.coordinators;
  return dump(object);
}

Result<StoredState> parse_state(std::string_view text) {
  return guarded("the job's record", text, [](const json& object) {
    return StoredState{.record = object.get<rendezvous::JobRecord>(),
                       .coordinators = object.value("coordinators", 0)};
  });
}

}  // namespace ddp::etcd
