// What GET /status says of a job.
#include <array>

#include <nlohmann/json.hpp>

#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {

nlohmann::json Job::status(TimePoint now) const {
  static constexpr std::array<const char*, 5> kPhaseNames{"waiting", "running", "recovering",
                                                          "stopping", "finished"};
  nlohmann::json job{{"job_id", id_},
                     {"state", kPhaseNames.at(static_cast<std::size_t>(phase_))},
                     {"round", round_},
                     {"restarts", restarts()},
                     {"max_restarts", max_restarts_},
                     {"min_nodes", min_nodes_},
                     {"max_nodes", max_nodes_},
                     {"world_size", phase_ == Phase::kWaiting ? 0 : world_size_},
                     {"nodes", nlohmann::json::array()}};
  for (const auto& [node_id, node] : nodes_) {
    nlohmann::json entry{
        {"node_id", node_id},
        {"host", node.join.host},
        {"address", node.address},
        {"nproc", node.join.nproc},
        {"step", node.step},
        {"silent_ms", std::chrono::duration_cast<Duration>(now - node.heard).count()}};
    const Member* member = phase_ == Phase::kWaiting ? nullptr : member_of(node_id);
    if (member != nullptr) {
      entry["group_rank"] = rank_of(*member);
      entry["succeeded"] = member->succeeded;
    }
    job["nodes"].push_back(std::move(entry));
  }
  if (phase_ == Phase::kRecovering) job["nodes_to_come_back"] = awaited_.size();
  if (phase_ == Phase::kRunning && scale_up_until_) job["nodes_to_commit"] = uncommitted_.size();
  if (phase_ == Phase::kWaiting) job["waiting_for"] = waiting_text(now);
  if (phase_ == Phase::kStopping) job["stopping_because"] = stop_reason_;
  if (phase_ == Phase::kFinished) {
    job["exit_code"] = result_.exit_code;
    job["summary"] = result_.summary;
  }
  return job;
}

}  // namespace ddp::rendezvous
