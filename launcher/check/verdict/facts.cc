#include "launcher/check/verdict/facts.h"

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace ddp::check {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(FolderFacts, path, error, free_bytes, free_inodes,
                                                mb_per_s, sync_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuFacts, index, name, error, uncorrected_errors,
                                                remapping_failed, remapping_pending, used_bytes,
                                                total_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PeerFacts, node, address, error, name_error,
                                                name_addresses, reverse_name, name_ms, has_clock,
                                                clock_ms, clock_error_ms, is_neighbour, latency_ms,
                                                mb_per_s)

// The folder is left out if there is none.
static void to_json(nlohmann::json& json, const LocalFacts& facts) {
  json = {{"host", facts.host},
          {"workers", facts.workers},
          {"world_size", facts.world_size},
          {"nodes", facts.nodes},
          {"shm_error", facts.shm_error},
          {"shm_free", facts.shm_free},
          {"memory", facts.memory},
          {"memory_source", facts.memory_source},
          {"memfd_error", facts.memfd_error},
          {"locked_memory", facts.locked_memory},
          {"has_rdma", facts.has_rdma},
          {"soft_files", facts.soft_files},
          {"hard_files", facts.hard_files},
          {"name_error", facts.name_error},
          {"name_addresses", facts.name_addresses},
          {"name_ms", facts.name_ms},
          {"gpu_files", facts.gpu_files},
          {"nvml_error", facts.nvml_error},
          {"gpus", facts.gpus}};
  if (facts.folder) json["folder"] = *facts.folder;
}
static void from_json(const nlohmann::json& json, LocalFacts& facts) {
  json.at("host").get_to(facts.host);
  json.at("workers").get_to(facts.workers);
  json.at("world_size").get_to(facts.world_size);
  json.at("nodes").get_to(facts.nodes);
  json.at("shm_error").get_to(facts.shm_error);
  json.at("shm_free").get_to(facts.shm_free);
  json.at("memory").get_to(facts.memory);
  json.at("memory_source").get_to(facts.memory_source);
  json.at("memfd_error").get_to(facts.memfd_error);
  json.at("locked_memory").get_to(facts.locked_memory);
  json.at("has_rdma").get_to(facts.has_rdma);
  json.at("soft_files").get_to(facts.soft_files);
  json.at("hard_files").get_to(facts.hard_files);
  json.at("name_error").get_to(facts.name_error);
  json.at("name_addresses").get_to(facts.name_addresses);
  json.at("name_ms").get_to(facts.name_ms);
  json.at("gpu_files").get_to(facts.gpu_files);
  json.at("nvml_error").get_to(facts.nvml_error);
  json.at("gpus").get_to(facts.gpus);
  if (const auto folder = json.find("folder"); folder != json.end())
    facts.folder = folder->get<FolderFacts>();
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeFacts, node, local, peers)

namespace {

template <typename T>
std::string dump(const T& value) {
  // Names of hosts and paths need not be UTF-8.
  return dump_json(nlohmann::json(value));
}

template <typename T>
Result<T> parse(std::string_view text) {
  try {
    return parse_json(text).get<T>();
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kProtocol, "these are not the facts of a check: {}", error.what());
  }
}

}  // namespace

std::string encode(const NodeFacts& facts) { return dump(facts); }
Result<NodeFacts> decode_node_facts(std::string_view text) { return parse<NodeFacts>(text); }
std::string encode(const FolderFacts& facts) { return dump(facts); }
Result<FolderFacts> decode_folder_facts(std::string_view text) { return parse<FolderFacts>(text); }

}  // namespace ddp::check
