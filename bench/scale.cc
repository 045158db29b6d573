#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "agent/core/agent_core.h"
#include "bench/program.h"
#include "common/base/clock.h"
#include "launcher/rendezvous/rendezvous_core.h"

// How a job of very many nodes is coordinated: the real coordinator and the real agents, in one
// process, with one worker each that does at once what it is told. Messages are passed as objects,
// in order and without delay, so this is the time that the decisions take. Prints a JSON line for
// each phase: seconds of processor time, and memory that is resident at its end. The nodes may also
// be divided into many jobs of one coordinator, which take as much memory but have few nodes each.
namespace ddp::bench {
namespace {

// Processor time, because nothing here waits and other processes may be running.
double used_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double resident_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

config::JobSpec spec_of(int node, int nodes, int job) {
  config::JobSpec spec;
  spec.job_id = fmt::format("scale{}", job);
  spec.node_id = fmt::format("{:016x}", 0x9e3779b97f4a7c15ull * static_cast<unsigned>(node + 1));
  spec.host = fmt::format("node{}", node);
  spec.coordinator_host = "10.0.0.1";
  spec.coordinator_port = 29'400;
  spec.rules.min_nodes = nodes - 1;
  spec.rules.max_nodes = nodes;
  spec.rules.max_restarts = 1;
  return spec;
}

class Simulation {
 public:
  Simulation(int jobs, int nodes_each) : jobs_(jobs), nodes_each_(nodes_each) {}

  void run() {
    measure("join", [this] { join(); });
    measure("first step", [this] { make_step(1); });
    measure("heartbeats", [this] { send_heartbeats(); });
    measure("loss of one", [this] { lose(); });
    measure("step after it", [this] { make_step(2); });
    measure("end", [this] { end(); });
  }

 private:
  struct Node {
    std::unique_ptr<agent::AgentCore> core;
    bool alive = true;
    bool exited = false;
  };
  template <typename Phase>
  void measure(const char* name, Phase phase) {
    messages_ = 0;
    const double began = used_s();
    phase();
    std::printf(
        "{\"jobs\": %d, \"nodes\": %d, \"phase\": \"%s\", \"seconds\": %.6f, \"messages\": %zu, "
        "\"resident_mb\": %.1f}\n",
        jobs_, jobs_ * nodes_each_, name, used_s() - began, messages_, resident_mb());
    std::fflush(stdout);
  }

  void join() {
    for (int node = 0; node < jobs_ * nodes_each_; ++node) {
      agents_.push_back({.core = std::make_unique<agent::AgentCore>(
                             spec_of(node, nodes_each_, node / nodes_each_), kNoRound, 0)});
      const auto index = static_cast<std::size_t>(node);
      feed(index, agents_[index].core->start(now_));
    }
    run_until_in_round(agents_.size());
  }

  void make_step(std::int64_t step) {
    for_all([this, step](agent::AgentCore& core) {
      auto actions = core.on_worker_hello(now_, 0, true);
      for (auto& action : core.on_worker_progress(now_, 0, step)) actions.push_back(action);
      return actions;
    });
    deliver();
  }

  void send_heartbeats() {
    now_ += Duration{1'000};
    for_all([this](agent::AgentCore& core) { return core.on_tick(now_); });
    deliver();
    feed_coordinator(coordinator_.on_tick(now_));
  }

  // A node of each job.
  void lose() {
    in_round_ = 0;
    for (int job = 0; job < jobs_; ++job) {
      const auto node = static_cast<std::size_t>(job * nodes_each_ + nodes_each_ / 2);
      agents_[node].alive = false;
      feed_coordinator(coordinator_.on_disconnect(now_, rendezvous::ConnectionId{node}));
    }
    run_until_in_round(agents_.size() - static_cast<std::size_t>(jobs_));
  }

  void end() {
    for_all([this](agent::AgentCore& core) {
      agent::WorkerExit exit;
      return core.on_worker_exit(now_, exit);
    });
    deliver();
    for (const Node& node : agents_) {
      if (node.alive && !node.exited) throw std::runtime_error("an agent does not exit");
    }
  }

  // Time goes on only when nothing is left to do.
  void run_until_in_round(std::size_t count) {
    deliver();
    while (in_round_ < count) {
      const auto deadline = coordinator_.next_deadline();
      if (!deadline) throw std::runtime_error("the round does not begin");
      now_ = std::max(now_, *deadline);
      feed_coordinator(coordinator_.on_tick(now_));
      deliver();
    }
  }

  template <typename Event>
  void for_all(Event event) {
    for (std::size_t node = 0; node < agents_.size(); ++node) {
      if (agents_[node].alive) feed(node, event(*agents_[node].core));
    }
  }

  void deliver() {
    while (!to_do_.empty()) {
      const std::function<void()> next = std::move(to_do_.front());
      to_do_.pop_front();
      next();
    }
  }

  void feed_coordinator(const std::vector<rendezvous::Action>& actions) {
    for (const rendezvous::Action& action : actions) {
      const auto* send = std::get_if<rendezvous::SendTo>(&action);
      if (send == nullptr) continue;
      ++messages_;
      on_agent(send->to, [this, message = send->message](agent::AgentCore& core) {
        return core.on_message(now_, message);
      });
    }
  }

  template <typename Event>
  void on_agent(std::size_t node, Event event) {
    to_do_.push_back([this, node, event = std::move(event)] {
      if (agents_[node].alive) feed(node, event(*agents_[node].core));
    });
  }

  void feed(std::size_t node, const std::vector<agent::Action>& actions) {
    for (const agent::Action& action : actions) {
      std::visit([this, node](const auto& each) { carry_out(node, each); }, action);
    }
  }

  void carry_out(std::size_t node, const agent::Connect& /*action*/) {
    on_agent(node, [this](agent::AgentCore& core) { return core.on_connected(now_); });
  }
  void carry_out(std::size_t node, const agent::SendToCoordinator& action) {
    ++messages_;
    to_do_.push_back([this, node, message = action.message] {
      feed_coordinator(coordinator_.on_message(now_, node, message, "10.0.0.1"));
    });
  }
  void carry_out(std::size_t /*node*/, const agent::SpawnWorkers& action) {
    round_ = action.round.round;
    ++in_round_;
  }
  // The worker leaves the round and waits for the next one.
  void carry_out(std::size_t node, const agent::SignalWorkers& action) {
    if (action.abort_reason.empty()) return;
    on_agent(node,
             [this](agent::AgentCore& core) { return core.on_worker_parked(now_, 0, round_, 1); });
  }
  void carry_out(std::size_t node, const agent::ClearRound& /*action*/) {
    on_agent(node, [this](agent::AgentCore& core) { return core.on_round_cleared(now_); });
  }
  void carry_out(std::size_t node, const agent::Exit& action) {
    if (action.result.exit_code != 0) throw std::runtime_error(action.result.summary);
    agents_[node].exited = true;
  }
  template <typename Other>
  void carry_out(std::size_t /*node*/, const Other& /*action*/) {}

  const int jobs_;
  const int nodes_each_;
  TimePoint now_{};
  rendezvous::RendezvousCore coordinator_;
  std::vector<Node> agents_;
  std::deque<std::function<void()>> to_do_;
  Round round_ = kNoRound;
  std::size_t in_round_ = 0;  // Nodes that have begun the newest round.
  std::size_t messages_ = 0;
};

void run(int argc, char** argv) {
  namespace po = boost::program_options;
  int nodes = 0;
  int jobs = 0;
  po::options_description flags("bench-scale: a coordinator and its agents, without a network");
  flags.add_options()("help", "print this")("nodes", po::value(&nodes)->default_value(1000),
                                            "number of nodes, at least 3 for each job")(
      "jobs", po::value(&jobs)->default_value(1), "jobs into which they are divided evenly");
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, flags), given);
  po::notify(given);
  if (given.contains("help")) {
    std::printf("%s", (std::stringstream() << flags).str().c_str());
    return;
  }
  if (jobs < 1 || nodes % jobs != 0)
    throw std::invalid_argument("--jobs: expected a divisor of --nodes");
  if (nodes / jobs < 3) throw std::invalid_argument("--nodes: expected at least 3 for each job");
  Simulation(jobs, nodes / jobs).run();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-scale", ddp::bench::run, argc, argv);
}
