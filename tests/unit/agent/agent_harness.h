#pragma once

#include <iterator>
#include <set>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/core/agent_core.h"

// The agent's core: a test gives it events, and it answers with actions.
namespace ddp::agent {

// An action as a short text, so that a test reads as a list of actions.
struct Name {
  std::string operator()(const Connect& a) const {
    return "connect+" + std::to_string(a.delay.count());
  }
  std::string operator()(const Disconnect&) const { return "disconnect"; }
  std::string operator()(const SendToCoordinator& a) const {
    static const char* const kNames[] = {"join",      "heartbeat", "failed",
                                         "succeeded", "committed", "stopped",
                                         "leave",     "output",    "trace_events"};
    static_assert(std::size(kNames) == std::variant_size_v<wire::AgentMessage>,
                  "a name for each AgentMessage, in its order");
    return kNames[a.message.index()];
  }
  std::string operator()(const SpawnWorkers& a) const {
    return "spawn " + std::to_string(a.round.round);
  }
  std::string operator()(const SignalWorkers& a) const {
    return "signal " + std::to_string(a.signal) +
           (a.abort_reason.empty() ? "" : ": " + a.abort_reason) + but(a.keep);
  }
  std::string operator()(const KillWorkers& a) const { return "kill" + but(a.keep); }
  std::string operator()(const ClearRound& a) const { return "clear" + but(a.keep); }
  std::string operator()(const RequestCommit& a) const {
    return "commit " + std::to_string(a.round) + " of" + list(a.from);
  }
  std::string operator()(const RequestCheckpoint&) const { return "checkpoint"; }
  std::string operator()(const FindHung& a) const { return "find hung of" + list(a.stalled); }
  std::string operator()(const DumpStacks& a) const {
    return "dump " + std::to_string(a.local_rank);
  }
  std::string operator()(const KillWorker& a) const {
    return "kill " + std::to_string(a.local_rank) + ": " + a.cause;
  }
  std::string operator()(const Print&) const { return "print"; }
  std::string operator()(const Exit& a) const {
    return "exit " + std::to_string(a.result.exit_code);
  }

 private:
  static std::string list(const std::set<int>& ranks) {
    std::string text;
    for (const int rank : ranks) text += " " + std::to_string(rank);
    return text;
  }
  static std::string but(const std::set<int>& kept) {
    return kept.empty() ? "" : " but" + list(kept);
  }
};

inline std::vector<std::string> names(const std::vector<Action>& actions) {
  std::vector<std::string> result;
  for (const Action& action : actions) result.push_back(std::visit(Name{}, action));
  return result;
}

// The first action or message of this type; a test failure where there is none.
template <typename T>
T the(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if constexpr (std::is_constructible_v<wire::AgentMessage, T>) {
      const auto* send = std::get_if<SendToCoordinator>(&action);
      const T* found = send == nullptr ? nullptr : std::get_if<T>(&send->message);
      if (found != nullptr) return *found;
    } else {
      if (const T* found = std::get_if<T>(&action)) return *found;
    }
  }
  ADD_FAILURE() << "no such action";
  return T{};
}

inline config::JobSpec spec(int nproc) {
  config::JobSpec job;
  job.job_id = "job";
  job.node_id = "id1";
  job.host = "n1";
  job.coordinator_host = "head";
  job.coordinator_port = 29'400;
  job.nproc = nproc;
  job.rules.join_timeout_ms = 10'000;
  job.rules.stop_timeout_ms = 5'000;
  job.coordinator_timeout_ms = 8'000;
  return job;
}

inline wire::RoundStart round_start(Round round, int restarts = 0) {
  wire::RoundStart start;
  start.round = round;
  start.restarts = restarts;
  start.group_rank = 1;
  start.world_size = 5;
  start.members = {{"id0", "n0", "10.0.0.1", 3, 0}, {"id1", "n1", "10.0.0.2", 2, 3}};
  return start;
}

inline WorkerExit exit_of(int local_rank, int exit_code, int signal = 0) {
  WorkerExit exit;
  exit.local_rank = local_rank;
  exit.pid = 100 + local_rank;
  exit.exit_code = exit_code;
  exit.signal = signal;
  return exit;
}

class Agent : public ::testing::Test {
 protected:
  Agent() : Agent(spec(2)) {}
  explicit Agent(const config::JobSpec& job) : core(job, kNoRound, 0) {}

  void join() {
    core.start(now);
    core.on_connected(now);
    core.on_message(now, wire::Welcome{1'000, 5'000});
  }
  void run(Round round = 0) {
    join();
    EXPECT_THAT(names(message(round_start(round))),
                ::testing::ElementsAre("spawn " + std::to_string(round)));
  }
  std::vector<Action> message(const wire::CoordinatorMessage& m) { return core.on_message(now, m); }
  std::vector<Action> ends(int local_rank, int exit_code, int signal = 0) {
    return core.on_worker_exit(now, exit_of(local_rank, exit_code, signal));
  }
  // Both workers end by the signal they were sent; the second end begins the clearing.
  void die(int signal) {
    EXPECT_THAT(names(ends(0, 0, signal)), ::testing::IsEmpty());
    EXPECT_THAT(names(ends(1, 0, signal)), ::testing::ElementsAre("clear"));
  }
  std::vector<Action> tick_at_deadline() {
    EXPECT_TRUE(core.next_deadline());
    now = *core.next_deadline();
    return core.on_tick(now);
  }

  // Both workers run round `round` and can take part in the next one.
  void run_reconfigurable(Round round = 0) {
    run(round);
    core.on_worker_hello(now, 0, true);
    core.on_worker_hello(now, 1, true);
  }

  TimePoint now{Duration{1'000'000}};
  AgentCore core;
};

}  // namespace ddp::agent
