#include "worker/runtime/mpi_variables.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string_view>

#include "common/config/derived_port.h"
#include "common/config/mpi_ranks.h"

namespace ddp::runtime {
namespace {

constexpr int kDefaultPort = 29'500;

std::optional<std::string> text_of(const std::optional<int>& number) {
  return number ? std::optional(std::to_string(*number)) : std::nullopt;
}

std::optional<config::MpiRanks> ranks_of(const Lookup& lookup) {
  for (const char* own : {"WORLD_SIZE", "DDP_NODE_ID", "DDP_STANDBY"})
    if (lookup(own)) return {};
  std::map<std::string, std::string> read;  // GetEnvironment's values must stay where they are.
  const auto ranks = config::read_mpi_ranks([&](const char* name) -> const char* {
    const auto value = lookup(name);
    return value ? (read[name] = *value).c_str() : nullptr;
  });
  if (!ranks) throw std::invalid_argument(ranks.error().message);
  return *ranks && (*ranks)->size.value_or(1) > 1 ? *ranks : std::nullopt;
}

}  // namespace

std::optional<std::string> mpi_variable(const Lookup& lookup, const std::string& name) {
  constexpr auto kGiven = std::to_array<std::string_view>(
      {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  if (std::find(kGiven.begin(), kGiven.end(), name) == kGiven.end()) return {};
  const auto ranks = ranks_of(lookup);
  if (!ranks) return {};
  if (name == "RANK") return std::to_string(ranks->rank);
  if (name == "WORLD_SIZE") return text_of(ranks->size);
  if (name == "LOCAL_RANK") return text_of(ranks->local_rank);
  if (name == "LOCAL_WORLD_SIZE") return text_of(ranks->local_size);
  if (name == "MASTER_ADDR")
    return ranks->on_one_machine() ? std::optional<std::string>("127.0.0.1") : std::nullopt;
  const bool derived = ranks->on_one_machine() && !ranks->job.empty() && !lookup("MASTER_ADDR");
  return std::to_string(derived ? config::derived_ports(ranks->job, 1).front() : kDefaultPort);
}

}  // namespace ddp::runtime
