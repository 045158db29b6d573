// The coordinator's process and the connections to it.
#include <algorithm>

#include <fmt/format.h>

#include "tests/sim/simulation.h"

namespace ddp::sim {
namespace {

// A core whose deadline stays in the past after a tick would spin for ever.
constexpr int kIdleTicksMax = 20;
// A ddp-run whose connection has closed has ended, unless it is heard within this time.
constexpr Duration kBearable{300};

template <typename Message, typename Decode>
Message through_wire(const Message& message, Decode decode, Checker& checker) {
  auto decoded = decode(wire::encode(message));
  checker.expect(decoded.has_value(), "a message does not survive its encoding");
  return decoded.has_value() ? *decoded : message;
}

}  // namespace

void Simulation::start_coordinator() {
  ++life_;
  log(fmt::format("coordinator {} starts", life_));
  rendezvous::CoreOptions options;
  if (predecessor_) {
    options.silence_of = [before = *predecessor_](const NodeId& node_id) {
      return node_id == before.node_id ? std::optional(before.silence) : std::nullopt;
    };
  }
  coordinator_ = std::make_unique<rendezvous::RendezvousCore>(std::move(options));
  coordinator_wake_.reset();
  if (scenario_.with_records && record_) coordinator_->restore(queue_.now(), *record_);
}

void Simulation::crash_coordinator(Duration outage) {
  if (coordinator_ == nullptr) return;
  log(fmt::format("fault: coordinator {} crashes for {} ms", life_, outage.count()));
  coordinator_.reset();
  coordinator_wake_.reset();
  for (auto& [id, connection] : connections_) {
    if (!connection.coordinator_open) continue;
    connection.coordinator_open = false;
    close_for_agent(id, random_.ms(0, 50));
  }
  predecessor_.reset();
  if (outage == Duration{0}) return;
  if (scenario_.with_replicas) lose_predecessor();
  queue_.after(outage, [this] { start_coordinator(); });
}

// The ddp-run that coordinated ends with its coordinator, or has only lost its office; the next one
// has heard which.
void Simulation::lose_predecessor() {
  const std::vector<int> live = live_agents();
  if (live.empty()) return;
  const int id = live[static_cast<std::size_t>(random_.between(0, std::ssize(live) - 1))];
  const int node = agents_[static_cast<std::size_t>(id)].node;
  predecessor_ = {.node_id = nodes_[static_cast<std::size_t>(node)].spec.node_id,
                  .silence = {.since = queue_.now()}};
  if (random_.one_in(2)) return;
  log(fmt::format("with the ddp-run of node {}", node));
  ++events_["ddp-run ends with its coordinator"];
  predecessor_->silence.lost_from = queue_.now() + kBearable;
  kill_ddp_run(id, random_.one_in(2) ? Duration{0} : random_.ms(100, 3'000));
}

void Simulation::feed_coordinator(std::vector<rendezvous::Action> actions) {
  for (const rendezvous::Action& action : actions) {
    std::visit([this](const auto& a) { carry_out(a); }, action);
  }
  schedule_coordinator_tick();
}

void Simulation::schedule_coordinator_tick() {
  if (coordinator_ == nullptr) return;
  const auto deadline = coordinator_->next_deadline();
  if (!deadline || (coordinator_wake_ && *coordinator_wake_ <= *deadline)) return;
  coordinator_wake_ = *deadline;
  queue_.at(*deadline, [this, when = *deadline, core = coordinator_.get()] {
    if (coordinator_ == nullptr || coordinator_.get() != core || coordinator_wake_ != when) return;
    coordinator_wake_.reset();
    feed_coordinator(coordinator_->on_tick(queue_.now()));
    notice_forgotten_job();  // Its last node may have been silent for too long.
    const auto next = coordinator_->next_deadline();
    coordinator_idle_ticks_ = next && *next <= queue_.now() ? coordinator_idle_ticks_ + 1 : 0;
    checker_.expect(coordinator_idle_ticks_ < kIdleTicksMax,
                    "the coordinator's clock stands still");
  });
}

void Simulation::carry_out(const rendezvous::RoundBegins& action) {
  log(fmt::format("round {} begins", action.round));
}

void Simulation::carry_out(const rendezvous::Persist& action) {
  if (record_) {
    checker_.expect(action.record.next_round >= record_->next_round || !scenario_.with_records,
                    "the record of the job falls back");
  }
  record_ = action.record;
}

void Simulation::carry_out(const rendezvous::JobFinished& action) {
  log(fmt::format("job finished: {} {}", action.finish.exit_code, action.finish.summary));
  const auto says = [&](const char* text) {
    return action.finish.summary.find(text) != std::string::npos;
  };
  if (says("did not come back after")) ++events_["node does not come back"];
  if (says("brought no step")) ++events_["ends for lack of progress"];
  if (says("no worker had made a step")) ++events_["ends before the first step"];
  if (action.finish.exit_code == 0 && checker_.rounds(life_) == 0) {
    ++events_["round goes on after a crash"];
  }
  checker_.job_finished(life_, action.finish);
}

void Simulation::carry_out(const rendezvous::CloseConnection& action) {
  const auto found = connections_.find(action.connection);
  if (found == connections_.end() || !found->second.coordinator_open) return;
  Connection& connection = found->second;
  connection.coordinator_open = false;
  const Agent& agent = agents_[static_cast<std::size_t>(connection.agent)];
  const TimePoint when =
      arrival(connection.last_down, nodes_[static_cast<std::size_t>(agent.node)]);
  close_for_agent(action.connection, std::chrono::duration_cast<Duration>(when - queue_.now()));
}

void Simulation::carry_out(const rendezvous::SendTo& action) {
  const auto found = connections_.find(action.to);
  if (found == connections_.end() || !found->second.coordinator_open) return;
  Connection& connection = found->second;
  const Agent& agent = agents_[static_cast<std::size_t>(connection.agent)];
  const Node& node = nodes_[static_cast<std::size_t>(agent.node)];
  if (const auto* start = std::get_if<wire::RoundStart>(&action.message)) {
    checker_.round_start_sent(life_, node.spec.node_id, *start);
    int live = 0;
    for (const int other : node.agents) live += live_workers(other);
    checker_.live_workers_at_round_begin(life_, start->round, node.spec.node_id, live);
  }
  connection.last_down = arrival(connection.last_down, node);
  ++messages_;
  if (std::holds_alternative<wire::CommitRound>(action.message)) ++events_["commit ordered"];
  if (const auto* notice = std::get_if<wire::Notice>(&action.message)) {
    if (notice->text.find(" is late: ") != std::string::npos) ++events_["rank is late"];
  }
  if (const auto* stop = std::get_if<wire::Stop>(&action.message)) {
    if (stop->reason.find("joined") != std::string::npos) ++events_["round changes for a node"];
    if (stop->reason.ends_with("takes its place")) ++events_["spare replaces a late node"];
    ++events_[stop->keep_workers ? "stop that keeps workers" : "stop for a fresh start"];
  }
  const auto message =
      scenario_.through_wire
          ? through_wire(action.message, wire::decode_coordinator_message, checker_)
          : action.message;
  queue_.at(connection.last_down,
            [this, id = action.to, life = life_, message] { deliver_down(id, life, message); });
}

// When a message that is sent now arrives: not before `after`, and not while the node is cut off.
TimePoint Simulation::arrival(TimePoint after, const Node& node) {
  return std::max(after, std::max(queue_.now(), node.partitioned_until) + random_.ms(0, 20));
}

void Simulation::deliver_up(rendezvous::ConnectionId id, const wire::AgentMessage& message) {
  const Connection& connection = connections_.at(id);
  if (!connection.coordinator_open || coordinator_ == nullptr) return;
  feed_coordinator(coordinator_->on_message(queue_.now(), id, message, "10.0.0.1"));
  if (std::holds_alternative<wire::Leave>(message)) notice_forgotten_job();
}

void Simulation::notice_forgotten_job() {
  if (!coordinator_->status(queue_.now()).empty()) return;
  log("the job is forgotten");
  record_.reset();
  checker_.job_forgotten();
  ++life_;
}

void Simulation::deliver_down(rendezvous::ConnectionId id, int life,
                              const wire::CoordinatorMessage& message) {
  const int agent_id = connections_.at(id).agent;
  on_agent(agent_id, [this, id, life, agent_id, message](agent::AgentCore& core) {
    Agent& agent = agents_[static_cast<std::size_t>(agent_id)];
    if (!connections_.at(id).agent_open || agent.connection != id)
      return std::vector<agent::Action>{};
    if (const auto* finish = std::get_if<wire::Finish>(&message))
      agent.finish_code = finish->exit_code;
    if (const auto* refused = std::get_if<wire::Refused>(&message))
      checker_.refused(refused->message);
    if (const auto* start = std::get_if<wire::RoundStart>(&message)) {
      agent.life = life;
      // Every second ddp-run keeps track of the numbers for a successor of its agent.
      Node& node = nodes_[static_cast<std::size_t>(agent.node)];
      if (agent.node % 2 == 0) {
        node.last_round = start->round;
        node.restarts = start->restarts;
      }
    }
    return core.on_message(queue_.now(), message);
  });
}

void Simulation::close_for_coordinator(rendezvous::ConnectionId id, Duration delay) {
  queue_.after(delay, [this, id] {
    Connection& connection = connections_.at(id);
    if (!connection.coordinator_open || coordinator_ == nullptr) return;
    connection.coordinator_open = false;
    feed_coordinator(coordinator_->on_disconnect(queue_.now(), id));
    notice_forgotten_job();
  });
}

void Simulation::close_for_agent(rendezvous::ConnectionId id, Duration delay) {
  queue_.after(delay, [this, id] {
    Connection& connection = connections_.at(id);
    if (!connection.agent_open) return;
    connection.agent_open = false;
    const int agent_id = connection.agent;
    on_agent(agent_id, [this, id, agent_id](agent::AgentCore& core) {
      Agent& agent = agents_[static_cast<std::size_t>(agent_id)];
      if (agent.connection != id) return std::vector<agent::Action>{};
      agent.connection.reset();
      return core.on_disconnected(queue_.now());
    });
    // The other side hears of it, if it has not.
    close_for_coordinator(id, random_.ms(0, 50));
  });
}

}  // namespace ddp::sim
