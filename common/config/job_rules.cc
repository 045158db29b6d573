#include "common/config/job_rules.h"

#include <array>
#include <string_view>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::config {
namespace {

constexpr std::int64_t kTimeLimitMs = 1'000LL * 60 * 60 * 24 * 365;

struct Rule {
  const char* member;  // In JSON.
  std::string_view flag;
  const char* name;  // In messages about the range.
  std::variant<int JobRules::*, std::int64_t JobRules::*, bool JobRules::*, double JobRules::*>
      value;
  double low;
  double high;
};

// All rules, in the order in which they are compared and checked.
constexpr std::string_view kNodes = "--nnodes";
constexpr auto kRules = std::to_array<Rule>({
    {"max_nodes", kNodes, "the largest number of nodes", &JobRules::max_nodes, 1, kNodesLimit},
    {"min_nodes", kNodes, "the smallest number of nodes", &JobRules::min_nodes, 1, kNodesLimit},
    {"max_restarts", "--max-restarts", "--max-restarts", &JobRules::max_restarts, 0,
     kMaxRestartsLimit},
    {"restart_on_start_failure", "--restart-on-start-failure", "--restart-on-start-failure",
     &JobRules::restart_on_start_failure, 0, 1},
    {"max_no_progress", "--max-no-progress", "--max-no-progress", &JobRules::max_no_progress, 0,
     kMaxRestartsLimit},
    {"max_node_failures", "--max-node-failures", "--max-node-failures",
     &JobRules::max_node_failures, 0, kMaxRestartsLimit},
    {"join_timeout_ms", "--join-timeout", "--join-timeout in ms", &JobRules::join_timeout_ms, 0,
     kTimeLimitMs},
    {"last_call_ms", "--last-call", "--last-call in ms", &JobRules::last_call_ms, 0, kTimeLimitMs},
    {"stop_timeout_ms", "--shutdown-timeout", "--shutdown-timeout in ms",
     &JobRules::stop_timeout_ms, 0, kTimeLimitMs},
    {"scale_up_ms", "--scale-up-timeout", "--scale-up-timeout in ms", &JobRules::scale_up_ms, 0,
     kTimeLimitMs},
    {"lease_ms", "--lease", "--lease in ms", &JobRules::lease_ms, kLeastLeaseMs, kLongestLeaseMs},
    {"exclude_stragglers", "--exclude-stragglers", "--exclude-stragglers",
     &JobRules::exclude_stragglers, 0, kLargestRatio},
});

std::string text_of(bool value) { return value ? "given" : "not given"; }
std::string text_of(double value) { return value == 0 ? "not given" : fmt::format("{}", value); }
std::string text_of(int value) { return fmt::format("{}", value); }
std::string text_of(std::int64_t ms) { return fmt::format("{} s", static_cast<double>(ms) / 1e3); }

std::string exact(const Rule& rule, const JobRules& rules) {
  return std::visit([&](auto value) { return fmt::format("{}", +(rules.*value)); }, rule.value);
}

// The value as people write it.
std::string shown(const Rule& rule, const JobRules& rules) {
  if (rule.flag != kNodes)
    return std::visit([&](auto value) { return text_of(rules.*value); }, rule.value);
  return rules.min_nodes == rules.max_nodes
             ? fmt::format("{}", rules.max_nodes)
             : fmt::format("{}:{}", rules.min_nodes, rules.max_nodes);
}

}  // namespace

void to_json(nlohmann::json& json, const JobRules& rules) {
  json = nlohmann::json::object();
  for (const Rule& rule : kRules)
    std::visit([&](auto value) { json[rule.member] = rules.*value; }, rule.value);
}

void from_json(const nlohmann::json& json, JobRules& rules) {
  rules = {};
  for (const Rule& rule : kRules) {
    std::visit([&](auto value) { rules.*value = json.value(rule.member, rules.*value); },
               rule.value);
  }
}

std::string out_of_range(const JobRules& rules) {
  for (const Rule& rule : kRules) {
    const auto value =
        std::visit([&](auto member) { return static_cast<double>(rules.*member); }, rule.value);
    const bool is_minimum = std::string_view(rule.member) == "min_nodes";
    const double high = is_minimum ? rules.max_nodes : rule.high;
    if (value >= rule.low && value <= high) continue;
    return fmt::format("{} is {}; it must be from {} to {}", rule.name, exact(rule, rules),
                       rule.low, high);
  }
  return "";
}

std::string difference(const JobRules& here, const std::string& host, const JobRules& there,
                       const std::string& other_host) {
  for (const Rule& rule : kRules) {
    const std::string mine = shown(rule, here);
    const std::string others = shown(rule, there);
    if (mine == others) continue;
    return fmt::format("{} is {} on {} and {} on {}", rule.flag, mine, host, others, other_host);
  }
  return "";
}

}  // namespace ddp::config
