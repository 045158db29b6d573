#include "common/config/job_rules.h"

#include <array>
#include <cstddef>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::config {
namespace {

constexpr std::int64_t kTimeLimitMs = 1'000LL * 60 * 60 * 24 * 365;
constexpr int kNodesLimit = 65'536;

template <typename Rules, typename Visit>
void for_each_field(Rules& rules, Visit visit) {
  visit("min_nodes", rules.min_nodes);
  visit("max_nodes", rules.max_nodes);
  visit("spares", rules.spares);
  visit("max_restarts", rules.max_restarts);
  visit("restart_on_start_failure", rules.restart_on_start_failure);
  visit("max_no_progress", rules.max_no_progress);
  visit("join_timeout_ms", rules.join_timeout_ms);
  visit("last_call_ms", rules.last_call_ms);
  visit("stop_timeout_ms", rules.stop_timeout_ms);
  visit("scale_up_ms", rules.scale_up_ms);
}

struct Shown {
  const char* flag;
  std::string value;
};

std::string seconds(std::int64_t ms) { return fmt::format("{} s", static_cast<double>(ms) / 1e3); }

// Each flag with its value, as people write it.
std::array<Shown, 9> shown(const JobRules& rules) {
  return {{{"--nnodes", rules.min_nodes == rules.max_nodes
                            ? fmt::format("{}", rules.max_nodes)
                            : fmt::format("{}:{}", rules.min_nodes, rules.max_nodes)},
           {"--spares", rules.spares < 0 ? "not given" : fmt::format("{}", rules.spares)},
           {"--max-restarts", fmt::format("{}", rules.max_restarts)},
           {"--restart-on-start-failure", rules.restart_on_start_failure ? "given" : "not given"},
           {"--max-no-progress", fmt::format("{}", rules.max_no_progress)},
           {"--join-timeout", seconds(rules.join_timeout_ms)},
           {"--last-call", seconds(rules.last_call_ms)},
           {"--shutdown-timeout", seconds(rules.stop_timeout_ms)},
           {"--scale-up-timeout", seconds(rules.scale_up_ms)}}};
}

}  // namespace

void to_json(nlohmann::json& json, const JobRules& rules) {
  json = nlohmann::json::object();
  for_each_field(rules, [&](const char* name, const auto& value) { json[name] = value; });
}

void from_json(const nlohmann::json& json, JobRules& rules) {
  rules = {};
  for_each_field(rules, [&](const char* name, auto& value) { value = json.value(name, value); });
}

std::string out_of_range(const JobRules& rules) {
  const auto complaint = [](const char* flag, std::int64_t value, std::int64_t low,
                            std::int64_t high) {
    return value >= low && value <= high
               ? std::string()
               : fmt::format("{} is {}; it must be from {} to {}", flag, value, low, high);
  };
  for (const std::string& found :
       {complaint("the largest number of nodes", rules.max_nodes, 1, kNodesLimit),
        complaint("the smallest number of nodes", rules.min_nodes, 1, rules.max_nodes),
        complaint("--max-restarts", rules.max_restarts, 0, kMaxRestartsLimit),
        complaint("--max-no-progress", rules.max_no_progress, 0, kMaxRestartsLimit),
        complaint("--join-timeout in ms", rules.join_timeout_ms, 0, kTimeLimitMs),
        complaint("--last-call in ms", rules.last_call_ms, 0, kTimeLimitMs),
        complaint("--shutdown-timeout in ms", rules.stop_timeout_ms, 0, kTimeLimitMs),
        complaint("--scale-up-timeout in ms", rules.scale_up_ms, 0, kTimeLimitMs)}) {
    if (!found.empty()) return found;
  }
  return "";
}

std::string difference(const JobRules& here, const std::string& host, const JobRules& there,
                       const std::string& other_host) {
  const auto mine = shown(here);
  const auto others = shown(there);
  for (std::size_t rule = 0; rule < mine.size(); ++rule) {
    if (mine[rule].value == others[rule].value) continue;
    return fmt::format("{} is {} on {} and {} on {}", mine[rule].flag, mine[rule].value, host,
                       others[rule].value, other_host);
  }
  return "";
}

}  // namespace ddp::config
