#include "launcher/server/agent_front.h"

#include <utility>
#include <variant>

#include <asio/post.hpp>
#include <nlohmann/json.hpp>

#include "common/base/random_hex.h"
#include "common/log/log.h"

namespace ddp::server {

using rendezvous::Action;

namespace {

// How long the agents may take to come after a take-over among replicas, which tell them at once.
constexpr Duration kReturnLimit{1'000};
// A machine that is gone without a word, by a power cut for example, acknowledges nothing any more.
// That is noticed within the sum of these. What is stopped or slow on a machine that is there is a
// matter of the lease.
constexpr Duration kPing{150};
constexpr std::chrono::milliseconds kAcknowledged{850};
// The same for connections with store traffic, whose peer may not read for a while.
constexpr std::chrono::milliseconds kBulkAcknowledged{10'000};
// HttpSession has given up by then.
constexpr Duration kOutputLimit{15'000};

}  // namespace

AgentFront::AgentFront(asio::io_context& io, int port, bool has_token, Hooks hooks)
    : io_(io),
      port_(port),
      has_token_(has_token),
      hooks_(std::move(hooks)),
      core_(std::make_unique<rendezvous::RendezvousCore>(
          rendezvous::CoreOptions{.has_token = has_token})),
      tick_(io),
      ping_(io),
      drain_limit_(io) {}

AgentFront::~AgentFront() {
  // Who waits for this goes on without it.
  if (drain_done_) asio::post(io_, std::move(drain_done_));
  for (const auto& [id, agent] : agents_) agent.connection->close();
  for (const auto& [id, connection] : replicas_) connection->close();
}

void AgentFront::keep_records(RecordKeeper keeper) {
  keeper_ = std::move(keeper);
  stands_by_ = false;
}

void AgentFront::stand_by() {
  stands_by_ = true;
  for (const auto& [id, agent] : agents_) agent.connection->close();
  agents_.clear();
  for (const auto& [id, request] : std::exchange(output_requests_, {})) request.done(std::nullopt);
  core_ = std::make_unique<rendezvous::RendezvousCore>(rendezvous::CoreOptions{
      .return_limit = kReturnLimit,
      .silence_of = [this](const NodeId& node_id) -> std::optional<rendezvous::Silence> {
        if (!replica_hooks_.silence_of) return std::nullopt;
        return replica_hooks_.silence_of(node_id);
      },
      .has_token = has_token_});
  waiting_.clear();
  storing_ = false;
  confirmed_ = false;
  running_jobs_.clear();
  tick_.cancel();
  alive_ = std::make_shared<bool>(true);  // What is posted was for the job as it was.
  if (drain_done_) drained();
}

void AgentFront::adopt(const std::shared_ptr<net::ByteStream>& stream, std::string_view received,
                       std::optional<std::string> job_id) {
  const std::uint64_t id = next_id_++;
  Agent agent{net::FrameConnection::adopt(stream, received), stream->remote(), std::move(job_id),
              is_loopback(stream->remote_address())};
  if (!agent.is_here) agent.connection->expect_acknowledgements(kAcknowledged);
  if (agents_.empty()) ping();
  const auto connection = agent.connection;
  agents_.emplace(id, std::move(agent));
  connection->start([this, id](const std::string& payload) { on_frame(id, payload); },
                    [this, id](const Error& why) { on_closed(id, why); },
                    [this, id] {
                      const auto link = store_links_.find(id);
                      if (link != store_links_.end()) link->second->on_drained();
                    });
}

void AgentFront::on_frame(std::uint64_t id, const std::string& payload) {
  if (replicas_.contains(id)) {
    replica_hooks_.frame(payload);
    return;
  }
  if (pass_to_store(id, payload)) return;
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  Agent& agent = found->second;
  Result<wire::AgentMessage> message = wire::decode_agent_message(payload);
  if (!message) {
    if (take_replica_frame(id, payload)) return;
    if (message.error().code == Errc::kNotFound) return;  // Of a newer release.
    log::warning("closing agent {}: {}", agent.connection->remote_address(),
                 message.error().message);
    agent.connection->close_after_writes();
    return apply(core_->on_disconnect(Clock::now(), id));
  }
  if (const auto* const output = std::get_if<wire::Output>(&*message))
    return take_output(id, *output);
  if (const auto* const events = std::get_if<wire::TraceEvents>(&*message)) {
    if (hooks_.traced) hooks_.traced(id, *events);
    return;
  }
  if (!may_send(agent, *message)) return;
  if (stands_by_) return redirect(agent);
  const std::string address = agent.connection->remote_address();
  note_replica(agent, *message, address);
  if (stands_by_) return;  // It turned out that another one coordinates.
  apply(core_->on_message(Clock::now(), id, *message, address));
}

// A connection of another ddp-run says so by its first frame. It is no agent's from then on.
bool AgentFront::take_replica_frame(std::uint64_t id, const std::string& payload) {
  if (!replica_hooks_.frame || !replica_hooks_.frame(payload)) return false;
  const auto agent = agents_.extract(id);
  if (agent.empty()) return true;
  replicas_.emplace(id, agent.mapped().connection);
  return true;
}

// A connection that carries store traffic says so by its first frame. It is no agent's from then
// on.
bool AgentFront::pass_to_store(std::uint64_t id, const std::string& payload) {
  if (const auto link = store_links_.find(id); link != store_links_.end()) {
    const Result<void> passed = link->second->on_frame(payload);
    if (passed) return true;
    log::warning("closing the store traffic of a node: {}", passed.error().message);
    store_links_.erase(link);
    return true;
  }
  if (payload != wire::kStoreStreams) return false;
  auto agent = agents_.extract(id);
  if (agent.empty()) return true;
  const auto connection = agent.mapped().connection;
  if (stands_by_ || !hooks_.store_client) {
    connection->close();
    return true;
  }
  // It carries bulk data, so its peer may let it wait.
  connection->expect_acknowledgements(kBulkAcknowledged);
  store_links_.emplace(id, std::make_unique<net::StreamMux>(io_, connection, hooks_.store_client));
  return true;
}

void AgentFront::ask_output(const std::string& job_id, Rank rank, OutputCallback done) {
  const auto place = core_->place_of(job_id, rank);
  const auto agent = place ? agents_.find(place->first) : agents_.end();
  if (agent == agents_.end()) {
    asio::post(io_, [done = std::move(done)] { done(std::nullopt); });
    return;
  }
  const TimePoint now = Clock::now();
  std::erase_if(output_requests_, [now](const auto& request) {
    return now - request.second.asked > kOutputLimit;  // Nobody waits for it any more.
  });
  const std::uint64_t id = next_id_++;
  output_requests_.emplace(id, OutputRequest{agent->first, now, std::move(done)});
  agent->second.connection->send(wire::encode(
      wire::CoordinatorMessage(wire::ShowOutput{.id = id, .local_rank = place->second})));
}

void AgentFront::ask_trace(rendezvous::ConnectionId agent, const wire::ReadTrace& question) {
  const auto found = agents_.find(agent);
  if (found != agents_.end())
    found->second.connection->send(wire::encode(wire::CoordinatorMessage(question)));
}

void AgentFront::take_output(std::uint64_t from, const wire::Output& output) {
  const auto request = output_requests_.find(output.id);
  if (request == output_requests_.end() || request->second.agent != from) return;
  const OutputCallback done = std::move(request->second.done);
  output_requests_.erase(request);
  done(output);
}

std::optional<HostPort> AgentFront::coordinator_elsewhere() const {
  return stands_by_ && replica_hooks_.coordinator ? replica_hooks_.coordinator() : std::nullopt;
}

void AgentFront::redirect(Agent& agent) {
  const auto place = coordinator_elsewhere();
  if (place) {
    agent.connection->send(wire::encode(
        wire::CoordinatorMessage(wire::Moved{.host = place->host, .port = place->port})));
  }
  agent.connection->close_after_writes();
}

void AgentFront::note_replica(Agent& agent, const wire::AgentMessage& message,
                              const std::string& address) {
  if (std::holds_alternative<wire::Leave>(message)) agent.has_left = true;
  const auto* const join = std::get_if<wire::Join>(&message);
  if (join == nullptr || join->replica_port == 0 || !replica_hooks_.joined) return;
  agent.replica = join->node_id;
  replica_hooks_.joined(
      *join, {.host = join->address.empty() ? address : join->address, .port = join->replica_port});
}

void AgentFront::forget_replica(const Agent& agent) {
  if (agent.replica.empty() || !replica_hooks_.gone) return;
  for (const auto& [id, other] : agents_) {
    if (other.replica == agent.replica) return;
  }
  replica_hooks_.gone(agent.replica, agent.has_left);
}

// Checks that an agent joins only the job to which it has proved to belong.
bool AgentFront::may_send(Agent& agent, const wire::AgentMessage& message) {
  const auto* const join = std::get_if<wire::Join>(&message);
  if (join == nullptr) return true;
  if (agent.job_id && *agent.job_id != join->job_id) {
    agent.connection->send(wire::encode(wire::CoordinatorMessage(wire::Refused{
        "this node has proved that it belongs to another job than the one it asks to join"})));
    agent.connection->close_after_writes();
    if (hooks_.refused) hooks_.refused(RefusalReason::kNotTheJobs, agent.remote);
    return false;
  }
  return true;
}

void AgentFront::on_closed(std::uint64_t id, const Error& why) {
  if (why.code == Errc::kIo) {
    log::warning("agent connection {} ended: {}", id, why.message);
  } else {
    log::info("agent connection {} ended: {}", id, why.message);
  }
  if (replicas_.erase(id) > 0) return;
  if (const auto link = store_links_.extract(id); !link.empty()) {
    return link.mapped()->on_closed(why);
  }
  const auto agent = agents_.extract(id);
  if (agent.empty()) return;
  std::vector<OutputCallback> unanswered;
  std::erase_if(output_requests_, [&](auto& request) {
    if (request.second.agent != id) return false;
    unanswered.push_back(std::move(request.second.done));
    return true;
  });
  for (const OutputCallback& done : unanswered) done(std::nullopt);
  forget_replica(agent.mapped());
  const Duration silent = why.code == Errc::kTimeout ? kPing + kAcknowledged : Duration{0};
  if (!stands_by_) apply(core_->on_disconnect(Clock::now(), id, silent));
  if (agents_.empty() && !leaving_) drained();
}

void AgentFront::apply(std::vector<Action> actions) {
  for (Action& action : actions) waiting_.push_back(std::move(action));
  perform_waiting();
  arm_timer();
  check_left();
}

void AgentFront::perform_waiting() {
  while (!waiting_.empty() && !storing_) {
    if (must_be_confirmed(waiting_.front())) {
      storing_ = true;
      keeper_.confirm(go_on(true));
      return;
    }
    Action action = std::move(waiting_.front());
    waiting_.pop_front();
    std::visit([this](auto& one) { perform(one); }, action);
  }
  confirmed_ = false;
}

bool AgentFront::must_be_confirmed(const Action& action) const {
  const auto* send = std::get_if<rendezvous::SendTo>(&action);
  return keeper_.confirm && !confirmed_ && send != nullptr &&
         std::holds_alternative<wire::Stop>(send->message);
}

std::function<void()> AgentFront::go_on(bool confirmed) {
  return [this, confirmed, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    storing_ = false;
    confirmed_ = confirmed;
    perform_waiting();
    check_left();
  };
}

void AgentFront::perform(rendezvous::SendTo& action) {
  const auto agent = agents_.find(action.to);
  if (agent == agents_.end()) return;
  if (auto* start = std::get_if<wire::RoundStart>(&action.message)) {
    if (start->master_port == 0) start->master_port = port_;
    start->link_nonce = link_nonce_;
  }
  agent->second.connection->send(wire::encode(action.message));
}

void AgentFront::perform(const rendezvous::CloseConnection& action) {
  const auto agent = agents_.find(action.connection);
  if (agent != agents_.end()) agent->second.connection->close_after_writes();
}

void AgentFront::perform(const rendezvous::RoundBegins& action) {
  log::info("job {}: round {} begins", action.job_id, action.round);
  ++rounds_;
  if (guards_links_) link_nonce_ = random_hex(32);
  running_jobs_.insert(action.job_id);
  if (hooks_.round_begins) hooks_.round_begins(action.job_id);
}

void AgentFront::perform(const rendezvous::JobFinished& action) {
  log::info("job {} is over with status {}: {}", action.job_id, action.finish.exit_code,
            action.finish.summary);
  running_jobs_.erase(action.job_id);
  ++finished_jobs_;
  if (!hooks_.job_finished) return;
  asio::post(io_, [this, alive = std::weak_ptr<bool>(alive_), action] {
    if (alive.expired()) return;
    const auto callback =
        hooks_.job_finished;  // A copy, because the callback may destroy this object.
    callback(action.job_id, action.finish);
  });
}

void AgentFront::perform(const rendezvous::Persist& action) {
  if (!keeper_.store) return;
  storing_ = true;
  keeper_.store(action.record, go_on(true));
}

void AgentFront::restore(const rendezvous::JobRecord& record,
                         std::optional<rendezvous::JobHistory> history) {
  core_->restore(Clock::now(), record, std::move(history));
  arm_timer();
}

void AgentFront::arm_timer() {
  const std::optional<TimePoint> deadline = core_->next_deadline();
  if (!deadline) return tick_.cancel();
  tick_.at(*deadline, [this] { apply(core_->on_tick(Clock::now())); });
}

void AgentFront::ping() {
  static const std::string kMessage = wire::encode(wire::CoordinatorMessage(wire::Ping{}));
  for (const auto& [id, agent] : agents_) {
    if (!agent.is_here) agent.connection->send(kMessage);
  }
  ping_.after(kPing, [this] {
    if (!agents_.empty()) ping();
  });
}

void AgentFront::end_job(const std::string& job_id, int exit_code, const std::string& reason) {
  apply(core_->end_job(Clock::now(), job_id, exit_code, reason));
}

void AgentFront::drain(std::chrono::milliseconds limit, std::function<void()> done) {
  drain_done_ = std::move(done);
  drain_limit_.after(agents_.empty() ? std::chrono::milliseconds(0) : limit, [this] { drained(); });
}

void AgentFront::leave(const std::string& job_id, const NodeId& node_id, const std::string& reason,
                       std::chrono::milliseconds limit, std::function<void()> done) {
  drain_done_ = std::move(done);
  leaving_ = true;
  drain_limit_.after(limit, [this] { drained(); });
  apply(core_->leave(Clock::now(), job_id, node_id, reason));
}

// Posted, because the callback may destroy this object. By then, the others may have answered, and
// the next round be about to be stored.
void AgentFront::check_left() {
  const auto has_left = [this] { return leaving_ && !storing_ && waiting_.empty(); };
  if (!has_left()) return;
  asio::post(io_, [this, has_left, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || !has_left()) return;
    leaving_ = false;
    drained();
  });
}

void AgentFront::drained() {
  drain_limit_.cancel();
  const auto done = std::exchange(drain_done_, nullptr);
  if (done) done();
}

// Nodes of a job whose record only this daemon has could take over, but never do.
std::vector<rendezvous::JobStatus> AgentFront::status() const {
  std::vector<rendezvous::JobStatus> jobs = core_->status(Clock::now());
  if (replica_hooks_.joined) return jobs;
  for (rendezvous::JobStatus& job : jobs) {
    for (rendezvous::NodeStatus& node : job.nodes) node.replica_port = 0;
  }
  return jobs;
}

nlohmann::json AgentFront::history(const std::set<std::string>& job_ids) const {
  return core_->history(Clock::now(), job_ids);
}

}  // namespace ddp::server
