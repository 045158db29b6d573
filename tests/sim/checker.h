#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::sim {

// Checks properties that hold in every history, from outside the cores. The simulation tells it
// what happens; it keeps the first violation.
class Checker {
 public:
  // With records a round's number never comes again, whatever dies.
  Checker(config::JobSpec job, bool with_records)
      : job_(std::move(job)), with_records_(with_records) {}

  // ---- what happens ----
  // A coordinator (`life` numbers its incarnations) sends round_start to `node_id`.
  void round_start_sent(int life, const NodeId& node_id, const wire::RoundStart& start);
  // Workers of a node of the round that is about to begin are still alive.
  void live_workers_at_round_begin(int life, Round round, const NodeId& node_id, int count);
  // An agent (`agent` numbers them all) is told to spawn. `live` counts workers still on that node.
  void spawn(int agent, const wire::RoundStart& start, int live);
  void worker_succeeded(int life, Round round, Rank rank);
  void job_finished(int life, const wire::Finish& finish);
  void refused(const std::string& message) { refusals_.insert(message); }
  void agent_exits(int agent, const config::AgentResult& result, int live,
                   std::optional<int> finish_code);
  void expect(bool holds, const std::string& what);

  const std::optional<std::string>& violation() const { return violation_; }
  // The job has gone, and another one of the same name may begin.
  void job_forgotten() { newest_ = kNoRound; }
  // The rounds begun under one coordinator.
  std::size_t rounds(int life) const;
  const std::set<std::string>& refusals() const { return refusals_; }
  const std::map<int, wire::Finish>& finishes() const { return finishes_; }

 private:
  struct AgentMemory {
    Round round = kNoRound;
    int restarts = 0;
  };
  void check_ranks(const wire::RoundStart& start);
  void check_budget(int life, const wire::RoundStart& start);

  const config::JobSpec job_;
  const bool with_records_;
  Round newest_ = kNoRound;
  std::map<std::pair<int, Round>, wire::RoundStart> worlds_;  // As first told.
  std::map<std::pair<int, Round>, std::set<NodeId>> told_;
  std::map<std::pair<int, Round>, std::set<Rank>> succeeded_;
  std::map<int, wire::Finish> finishes_;
  std::map<int, AgentMemory> agents_;
  std::set<std::string> refusals_;
  std::optional<std::string> violation_;
};

}  // namespace ddp::sim
