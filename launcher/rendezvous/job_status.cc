// What GET /status says about a job.
#include "launcher/rendezvous/job_status.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/count_text.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

void put(nlohmann::json& object, const char* field, double value) {
  if (std::isfinite(value)) object[field] = value;
}

nlohmann::json to_json(const NodeStatus& node) {
  nlohmann::json object{{"node_id", node.node_id}, {"host", node.host},   {"address", node.address},
                        {"state", node.state},     {"nproc", node.nproc}, {"step", node.step}};
  if (node.replica_port > 0) object["replica_port"] = node.replica_port;
  if (node.role != wire::kDefaultRole) object["role"] = node.role;
  if (node.group_rank >= 0) object["group_rank"] = node.group_rank;
  if (node.first_rank >= 0) {
    object["ranks"] = {node.first_rank, node.first_rank + node.nproc - 1};
  }
  if (node.connected()) object["silent_ms"] = node.silent.count();
  put(object, "loss", node.loss);
  if (!node.loss_is.empty()) object["loss_is"] = node.loss_is;
  put(object, "samples_per_second", node.samples_per_second);
  put(object, "steps_per_second", node.steps_per_second);
  if (node.total_steps > 0) object["total_steps"] = node.total_steps;
  put(object, "eta_seconds", node.eta_seconds);
  if (!node.waits.empty()) object["waits"] = node.waits;
  return object;
}

nlohmann::json to_json(const FailureStatus& failure) {
  nlohmann::json object{{"round", failure.round}, {"text", failure.text}, {"host", failure.host}};
  if (failure.rank >= 0) object["rank"] = failure.rank;
  if (failure.exit_code != 0) object["exit_code"] = failure.exit_code;
  if (failure.signal != 0) object["signal"] = failure.signal;
  if (!failure.cause.empty()) object["cause"] = failure.cause;
  if (!failure.log_path.empty()) object["log_path"] = failure.log_path;
  return object;
}

nlohmann::json to_json(const LateStatus& late) {
  return {{"rank", late.rank},
          {"host", late.host},
          {"computes_ms", late.computes_ms},
          {"others_ms", late.others_ms},
          {"since_ms", late.since.count()}};
}

FailureStatus status_of(const wire::Failure& failure, Round round) {
  return {.round = round,
          .text = describe(failure),
          .host = failure.host,
          .rank = failure.rank,
          .exit_code = failure.signal != 0 ? 0 : failure.exit_code,
          .signal = failure.signal,
          .cause = failure.cause,
          .log_path = failure.log_path};
}

}  // namespace

nlohmann::json to_json(const JobStatus& status) {
  nlohmann::json job{{"job_id", status.job_id},         {"program", status.program},
                     {"state", status.state},           {"round", status.round},
                     {"restarts", status.restarts},     {"max_restarts", status.max_restarts},
                     {"min_nodes", status.min_nodes},   {"max_nodes", status.max_nodes},
                     {"world_size", status.world_size}, {"failures", status.failures},
                     {"best_step", status.best_step},   {"nodes", nlohmann::json::array()}};
  for (const NodeStatus& node : status.nodes) job["nodes"].push_back(to_json(node));
  if (status.first_failure) job["first_failure"] = to_json(*status.first_failure);
  for (const LateStatus& late : status.late) job["late"].push_back(to_json(late));
  for (const LeftOut& left_out : status.left_out) {
    job["left_out"].push_back({{"host", left_out.host}, {"reason", left_out.reason}});
  }
  if (!status.waiting_for.empty()) job["waiting_for"] = status.waiting_for;
  if (status.exit_code) {
    job["exit_code"] = *status.exit_code;
    job["summary"] = status.summary;
  }
  return job;
}

std::string Job::node_state(const NodeId& node_id, const Member* member) const {
  if (phase_ == Phase::kFinished) {
    const bool was_in = member != nullptr && member->presence == Member::Presence::kIn;
    return was_in || nodes_.contains(node_id) ? "finished" : "lost";
  }
  if (member != nullptr && member->presence == Member::Presence::kAwaited) return "awaited";
  const auto node = nodes_.find(node_id);
  if (node == nodes_.end()) return "lost";
  if (node->second.ending) return "ending";
  if (phase_ == Phase::kWaiting) return "waiting";
  if (member == nullptr || member->presence != Member::Presence::kIn) return "spare";
  if (member->succeeded) return "succeeded";
  return round_.stop.unanswered.contains(rank_of(*member)) ? "stopping" : "in_round";
}

NodeStatus Job::node_status(TimePoint now, const NodeId& node_id, const Member* member) const {
  NodeStatus out;
  out.node_id = node_id;
  out.state = node_state(node_id, member);
  if (member != nullptr) {
    out.host = member->info.host;
    out.address = member->info.address;
    out.nproc = member->info.nproc;
    out.role = member->info.role;
  }
  if (member != nullptr && phase_ != Phase::kWaiting) {
    out.group_rank = static_cast<int>(rank_of(*member));
    out.first_rank = member->info.first_rank;
  }
  const auto found = nodes_.find(node_id);
  if (found == nodes_.end()) return out;
  const Node& node = found->second;
  out.host = node.join.host;
  out.address = node.address;
  out.replica_port = node.join.replica_port;
  out.nproc = node.join.nproc;
  out.role = node.join.role;
  out.step = node.step;
  out.loss = node.loss;
  out.loss_is = node.loss_is;
  out.samples_per_second = node.samples_per_second;
  out.steps_per_second = node.pace.steps_per_second;
  out.total_steps = node.total_steps;
  out.waits = node.waits;
  if (out.total_steps > 0 && out.steps_per_second > 0) {
    const auto left = std::max<std::int64_t>(out.total_steps - out.step, 0);
    out.eta_seconds = static_cast<double>(left) / out.steps_per_second;
  }
  out.silent = std::chrono::duration_cast<Duration>(now - node.heard);
  return out;
}

std::string Job::waits_for(TimePoint now) const {
  switch (phase_) {
    case Phase::kWaiting:
      return waiting_text(now);
    case Phase::kRecovering:
      return fmt::format("{} of the round to come back",
                         count_text(std::ssize(round_.recovery.awaited), "node"));
    case Phase::kStopping:
      return fmt::format("{} to stop: {}", count_text(std::ssize(round_.stop.unanswered), "node"),
                         round_.stop.reason);
    case Phase::kRunning:
      if (!round_.scale_up) return "";
      return fmt::format("{} to commit, so that {}",
                         count_text(std::ssize(round_.scale_up->uncommitted), "node"),
                         round_.scale_up->instead_of.empty() ? "a new node can come in"
                                                             : "a spare can replace a late node");
    case Phase::kFinished:
      return "";
  }
  return "";
}

JobStatus Job::status(TimePoint now) const {
  static constexpr std::array<const char*, 5> kPhaseNames{"waiting", "running", "recovering",
                                                          "stopping", "finished"};
  JobStatus out;
  out.job_id = id_;
  out.program = program_;
  out.state = kPhaseNames.at(static_cast<std::size_t>(phase_));
  out.round = round_.number;
  out.world_size = phase_ == Phase::kWaiting ? 0 : round_.world_size;
  out.min_nodes = rules_.min_nodes;
  out.max_nodes = rules_.max_nodes;
  out.restarts = budget_.restarts();
  out.max_restarts = rules_.max_restarts;
  out.failures = failures_reported_;
  out.best_step = budget_.best_step;
  for (const Member& member : round_.members) {
    if (member.presence == Member::Presence::kLeft) continue;
    out.nodes.push_back(node_status(now, member.info.node_id, &member));
  }
  for (const auto& [node_id, node] : nodes_) {
    if (member_of(node_id) == nullptr) out.nodes.push_back(node_status(now, node_id, nullptr));
  }
  if (!round_.failures.empty()) {
    out.first_failure = status_of(root(), round_.number);
  } else if (last_failure_) {
    out.first_failure = status_of(last_failure_->second, last_failure_->first);
  }
  for (const auto& [rank, late] : lateness_.late()) {
    out.late.push_back({.rank = rank,
                        .host = member_with(rank).info.host,
                        .computes_ms = late.computes_ms,
                        .others_ms = late.others_ms,
                        .since = std::chrono::duration_cast<Duration>(now - late.since)});
  }
  out.left_out = left_out_;
  out.waiting_for = waits_for(now);
  if (phase_ == Phase::kFinished) {
    out.exit_code = result_.exit_code;
    out.summary = result_.summary;
    out.since_end = std::chrono::duration_cast<Duration>(now - finished_at_);
  }
  return out;
}

std::optional<std::pair<ConnectionId, int>> Job::place_of(Rank rank) const {
  if (phase_ == Phase::kWaiting || phase_ == Phase::kFinished) return std::nullopt;
  for (const Member& member : round_.members) {
    const int local_rank = rank - member.info.first_rank;
    if (local_rank < 0 || local_rank >= member.info.nproc) continue;
    const auto node = nodes_.find(member.info.node_id);
    if (node == nodes_.end()) return std::nullopt;
    return std::pair(node->second.connection, local_rank);
  }
  return std::nullopt;
}

std::string Job::failure_text() const {
  if (phase_ == Phase::kFinished && !result_.report.empty()) return result_.report;
  if (!round_.failures.empty()) return describe_in_full(root());
  return last_failure_ ? describe_in_full(last_failure_->second) : "";
}

nlohmann::json Job::history(TimePoint now) const {
  nlohmann::json object = history_.facts(finished() ? finished_at_ : now);
  object["job_id"] = id_;
  return object;
}

}  // namespace ddp::rendezvous
