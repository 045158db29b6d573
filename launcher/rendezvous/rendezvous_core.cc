#include "launcher/rendezvous/rendezvous_core.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {
namespace {

constexpr int kWorkersPerNodeMax = 65'536;
constexpr int kRestartsMax = 1'000'000'000;
constexpr Round kRoundMax = Round{1} << 53;  // JSON's integers are exact up to here.
// How many finished jobs are kept, to refuse late joins. Beyond that, the oldest is forgotten.
constexpr std::size_t kFinishedJobsMax = 1'024;
// Of jobs that wait for their nodes: how many each is told of. A person needs one.
constexpr std::size_t kWaitingNamedMax = 8;

// Why the join is invalid; empty if it is valid.
constexpr std::size_t kTextBytesMax = 4'096;

std::string invalid(const wire::Join& join) {
  const auto out_of_range = [](std::string_view what, std::int64_t value, std::int64_t low,
                               std::int64_t high) {
    return fmt::format("{} is {}, allowed are {} to {}", what, value, low, high);
  };
  const auto outside = [](std::int64_t value, std::int64_t low, std::int64_t high) {
    return value < low || value > high;
  };
  if (join.job_id.empty()) return "the job id is empty";
  if (join.node_id.empty()) return "the node id is empty";
  // They come back in messages to all nodes, whose size has a limit, too.
  const std::initializer_list<std::pair<std::string_view, std::string_view>> texts{
      {"job id", join.job_id},   {"node id", join.node_id}, {"host name", join.host},
      {"address", join.address}, {"program", join.program}, {"role", join.role},
      {"health", join.unfit},    {"release", join.release}};
  for (const auto& [what, text] : texts) {
    if (text.size() <= kTextBytesMax) continue;
    return fmt::format("the {} has {} bytes; the limit is {}", what, text.size(), kTextBytesMax);
  }
  if (const std::string fault = config::out_of_range(join.rules); !fault.empty()) return fault;
  if (outside(join.nproc, 1, kWorkersPerNodeMax)) {
    return out_of_range("workers per node", join.nproc, 1, kWorkersPerNodeMax);
  }
  if (outside(join.node_rank, -1, join.rules.max_nodes - 1)) {
    return out_of_range("node rank", join.node_rank, 0, join.rules.max_nodes - 1);
  }
  if (outside(join.restarts, 0, kRestartsMax)) {
    return out_of_range("restarts", join.restarts, 0, kRestartsMax);
  }
  if (outside(join.last_round, kNoRound, kRoundMax)) {
    return out_of_range("last round", join.last_round, kNoRound, kRoundMax);
  }
  if (outside(join.running_round, kNoRound, join.last_round)) {
    return out_of_range("running round", join.running_round, kNoRound, join.last_round);
  }
  return "";
}

}  // namespace

RendezvousCore::RendezvousCore(CoreOptions options) : options_(options) {}
RendezvousCore::~RendezvousCore() = default;

std::vector<Action> RendezvousCore::settled(std::vector<Action> actions) {
  for (const Action& action : actions) {
    if (const auto* close = std::get_if<CloseConnection>(&action)) job_of_.erase(close->connection);
    if (const auto* finished = std::get_if<JobFinished>(&action)) {
      finished_.push_back(finished->job_id);
    }
  }
  std::erase_if(jobs_, [](const auto& entry) { return entry.second->abandoned(); });
  while (finished_.size() > kFinishedJobsMax) {
    jobs_.erase(finished_.front());
    finished_.pop_front();
  }
  return actions;
}

std::vector<Action> RendezvousCore::on_join(TimePoint now, ConnectionId from,
                                            const wire::Join& join, std::string_view peer_address) {
  std::vector<Action> actions;
  const std::string fault = invalid(join);
  if (!fault.empty()) {
    actions.push_back(SendTo{from, wire::Refused{fault}});
    actions.push_back(CloseConnection{from});
    return actions;
  }
  std::unique_ptr<Job>& job = jobs_[join.job_id];
  if (job == nullptr) {
    if (auto earlier = restored_.extract(join.job_id)) {
      auto& [record, history] = earlier.mapped();
      job = std::make_unique<Job>(options_, now, join, &record, std::move(history),
                                  [this] { return waiting_jobs(); });
    } else {
      job = std::make_unique<Job>(options_, now, join, nullptr, std::nullopt,
                                  [this] { return waiting_jobs(); });
    }
  }
  job_of_[from] = join.job_id;
  job->join(now, from, join, peer_address, actions);
  return actions;
}

std::vector<Action> RendezvousCore::on_message(TimePoint now, ConnectionId from,
                                               const wire::AgentMessage& message,
                                               std::string_view peer_address) {
  const auto found = job_of_.find(from);
  const auto* join = std::get_if<wire::Join>(&message);
  if (join != nullptr && found == job_of_.end()) {
    return settled(on_join(now, from, *join, peer_address));
  }
  std::vector<Action> actions;
  if (join != nullptr || found == job_of_.end()) {
    // A connection joins once, as its first message. One that does otherwise is not an agent of
    // ours.
    if (found != job_of_.end()) {
      if (const auto job = jobs_.find(found->second); job != jobs_.end()) {
        job->second->disconnect(now, from, Duration{0}, actions);
      }
    }
    actions.push_back(CloseConnection{from});
    return settled(std::move(actions));
  }
  if (const auto job = jobs_.find(found->second); job != jobs_.end()) {
    job->second->message(now, from, message, actions);
  }
  return settled(std::move(actions));
}

std::vector<Action> RendezvousCore::on_disconnect(TimePoint now, ConnectionId connection,
                                                  Duration silent) {
  std::vector<Action> actions;
  const auto found = job_of_.find(connection);
  if (found == job_of_.end()) return actions;
  const auto job = jobs_.find(found->second);
  job_of_.erase(found);
  if (job != jobs_.end()) job->second->disconnect(now, connection, silent, actions);
  return settled(std::move(actions));
}

// Nodes that wait for each other may have been given different names for their job.
std::vector<std::string> RendezvousCore::waiting_jobs() const {
  std::vector<std::string> waiting;
  for (const auto& [job_id, job] : jobs_) {
    if (job != nullptr && job->waits_for_its_first_round()) waiting.push_back(job_id);
    if (waiting.size() == kWaitingNamedMax) break;
  }
  return waiting;
}

std::vector<Action> RendezvousCore::on_tick(TimePoint now) {
  std::vector<Action> actions;
  for (const auto& [job_id, job] : jobs_) {
    if (!job->finished()) job->tick(now, actions);
  }
  return settled(std::move(actions));
}

void RendezvousCore::restore(TimePoint, const JobRecord& record,
                             std::optional<JobHistory> history) {
  restored_[record.job_id] = {record, std::move(history)};
}

std::optional<TimePoint> RendezvousCore::next_deadline() const {
  std::optional<TimePoint> next;
  for (const auto& [job_id, job] : jobs_) {
    const auto deadline = job->next_deadline();
    if (deadline) next = next ? std::min(*next, *deadline) : *deadline;
  }
  return next;
}

std::vector<Action> RendezvousCore::leave(TimePoint now, const std::string& job_id,
                                          const NodeId& node_id, const std::string& reason) {
  std::vector<Action> actions;
  if (const auto job = jobs_.find(job_id); job != jobs_.end()) {
    job->second->leave(now, node_id, reason, actions);
  }
  return settled(std::move(actions));
}

std::vector<Action> RendezvousCore::end_job(TimePoint now, const std::string& job_id, int exit_code,
                                            const std::string& reason) {
  std::vector<Action> actions;
  if (const auto job = jobs_.find(job_id); job != jobs_.end()) {
    job->second->end(now, exit_code, reason, actions);
  }
  return settled(std::move(actions));
}

std::optional<std::pair<ConnectionId, int>> RendezvousCore::place_of(const std::string& job_id,
                                                                     Rank rank) const {
  const auto job = jobs_.find(job_id);
  return job == jobs_.end() ? std::nullopt : job->second->place_of(rank);
}

std::vector<ConnectionId> RendezvousCore::agents_of(const std::string& job_id) const {
  std::vector<ConnectionId> agents;
  for (const auto& [connection, of_job] : job_of_) {
    if (of_job == job_id) agents.push_back(connection);
  }
  return agents;
}

const JobHistory* RendezvousCore::history_of(const std::string& job_id) const {
  const auto job = jobs_.find(job_id);
  return job == jobs_.end() ? nullptr : &job->second->record_of_rounds();
}

std::string RendezvousCore::failure_text(const std::string& job_id) const {
  const auto job = jobs_.find(job_id);
  return job == jobs_.end() ? "" : job->second->failure_text();
}

std::vector<JobStatus> RendezvousCore::status(TimePoint now) const {
  std::vector<JobStatus> all;
  for (const auto& [job_id, job] : jobs_) all.push_back(job->status(now));
  return all;
}

nlohmann::json RendezvousCore::history(TimePoint now, const std::set<std::string>& job_ids) const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [job_id, job] : jobs_) {
    if (job_ids.empty() || job_ids.contains(job_id)) all.push_back(job->history(now));
  }
  return all;
}

}  // namespace ddp::rendezvous
