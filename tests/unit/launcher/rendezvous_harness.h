#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/rendezvous/rendezvous_core.h"

namespace ddp::rendezvous {

// A RendezvousCore with its time and its connections; keeps what it sends, by connection.
class CoordinatorHarness {
 public:
  explicit CoordinatorHarness(CoreOptions options = {}) : core(options) {}

  // A node of a job of `nodes` nodes, "name" being its node id and its host.
  static wire::Join node(const std::string& name, int min_nodes, int max_nodes,
                         int max_restarts = 0) {
    wire::Join join;
    join.job_id = "job";
    join.node_id = name;
    join.host = name;
    join.rules.min_nodes = min_nodes;
    join.rules.max_nodes = max_nodes;
    join.rules.max_restarts = max_restarts;
    join.rules.join_timeout_ms = 60'000;
    join.rules.last_call_ms = 3'000;
    join.rules.stop_timeout_ms = 10'000;
    return join;
  }

  // What a coordinator before this one has stored of "job"; members come to it by their word.
  static JobRecord record(Round next_round, int restarts, std::int64_t best_step) {
    JobRecord made;
    made.job_id = "job";
    made.next_round = next_round;
    made.restarts = restarts;
    made.best_step = best_step;
    return made;
  }
  void restore(const JobRecord& stored) { core.restore(now, stored); }

  ConnectionId join(const wire::Join& message) {
    const ConnectionId id = next_++;
    say(id, message);
    return id;
  }
  void say(ConnectionId from, const wire::AgentMessage& message) {
    take(core.on_message(now, from, message, "10.0.0.7"));
  }
  void disconnect(ConnectionId id) { take(core.on_disconnect(now, id)); }
  // Time goes on, with heartbeats of everybody who is connected unless `silent`.
  void pass(Duration time, const std::set<ConnectionId>& silent = {}) {
    const TimePoint end = now + time;
    while (now < end) {
      now = std::min(end, now + Duration{500});
      for (ConnectionId id = 1; id < next_; ++id) {
        if (!closed.contains(id) && !silent.contains(id)) say(id, wire::Heartbeat{});
      }
      take(core.on_tick(now));
    }
  }

  // The messages of this type that were sent to the connection.
  template <typename T>
  std::vector<T> all(ConnectionId id) const {
    std::vector<T> found;
    if (!sent.contains(id)) return found;
    for (const auto& message : sent.at(id)) {
      if (const auto* m = std::get_if<T>(&message)) found.push_back(*m);
    }
    return found;
  }
  // What GET /status says of the jobs.
  std::string status_json() const {
    nlohmann::json jobs;
    for (const JobStatus& job : core.status(now)) jobs.push_back(to_json(job));
    return jobs.dump(2);
  }
  template <typename T>
  std::size_t count(ConnectionId id) const {
    return all<T>(id).size();
  }
  // The latest of this type; a test failure where there is none.
  template <typename T>
  T last(ConnectionId id) const {
    const auto found = all<T>(id);
    EXPECT_FALSE(found.empty()) << "connection " << id << " got no such message";
    return found.empty() ? T{} : found.back();
  }

  void fail(ConnectionId from, Round round, int signal, int exit_code = 0, bool secondary = false) {
    wire::Failure failure;
    failure.rank = static_cast<int>(from) - 1;
    failure.signal = signal;
    failure.exit_code = exit_code;
    failure.secondary = secondary;
    say(from, wire::WorkerFailed{round, failure});
  }

  void take(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (auto* send = std::get_if<SendTo>(&action)) {
        EXPECT_FALSE(closed.contains(send->to)) << "sends to a closed connection " << send->to;
        sent[send->to].push_back(send->message);
      }
      if (auto* close = std::get_if<CloseConnection>(&action)) closed.insert(close->connection);
      if (auto* begins = std::get_if<RoundBegins>(&action)) rounds.push_back(begins->round);
      if (auto* end = std::get_if<JobFinished>(&action)) finished.push_back(end->finish);
      if (auto* persist = std::get_if<Persist>(&action)) records.push_back(persist->record);
    }
  }

  RendezvousCore core;
  TimePoint now{Duration{1'000'000}};
  std::map<ConnectionId, std::vector<wire::CoordinatorMessage>> sent;
  std::set<ConnectionId> closed;
  std::vector<Round> rounds;           // As they began.
  std::vector<wire::Finish> finished;  // Jobs that ended.
  std::vector<JobRecord> records;      // As they were to be stored.

 private:
  ConnectionId next_ = 1;
};

}  // namespace ddp::rendezvous
