#include "launcher/hosting/replica_hosting.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <asio/post.hpp>
#include <nlohmann/json.hpp>

#include "common/base/exit_error.h"
#include "common/base/json_text.h"
#include "common/log/log.h"
#include "launcher/hosting/hosting.h"
#include "launcher/hosting/meeting_file.h"
#include "launcher/machine/machine.h"

namespace ddp::hosting {
namespace {

constexpr Duration kTick{20};
// How often the next coordinators are told what the job has been through: once in this time, and on
// average at most so many bytes in it.
constexpr Duration kHistoryPeriod{1'000};
constexpr Duration::rep kHistoryBytes = 32'768;
// How long the other nodes may take to elect another coordinator, once this one leaves.
constexpr Duration kHandOverLimit{2'000};

}  // namespace

Result<std::unique_ptr<ReplicaHosting>> ReplicaHosting::create(
    asio::io_context& io, const plan::JobPlan& plan, std::unique_ptr<server::Server> server,
    Events events) {
  auto tls = load_tls(plan.spec);
  if (!tls) return tls.error();
  const bool founds = server != nullptr;
  if (!founds) {
    server::ServerOptions options = options_of_job(plan.spec, *tls);
    options.stands_by = true;
    auto own = server::Server::listen(io, options);
    if (!own) return exit_error(kExitInvalidValue, "{}", own.error().message);
    server = std::move(*own);
  }
  return std::unique_ptr<ReplicaHosting>(
      new ReplicaHosting(io, plan, std::move(server), founds, std::move(*tls), std::move(events)));
}

ReplicaHosting::ReplicaHosting(asio::io_context& io, const plan::JobPlan& plan,
                               std::unique_ptr<server::Server> server, bool founds,
                               std::shared_ptr<const net::TlsContext> tls, Events events)
    : io_(io),
      spec_(plan.spec),
      meeting_file_(plan.meeting_file),
      founds_(founds),
      events_(std::move(events)),
      server_(std::move(server)),
      at_(own_place(plan, server_->port(), founds)),
      links_(io,
             {.token = spec_.rdzv_token,
              .job_id = spec_.job_id,
              .tls = std::move(tls),
              .tls_name = {},
              .any_user = spec_.any_user},
             [this](const HostPort& peer) { replica_.on_closed(Clock::now(), peer); }),
      replica_(replicas::member_id(spec_.node_id), at_,
               {.job_id = spec_.job_id,
                .raft = {.seed = static_cast<std::uint32_t>(replicas::member_id(spec_.node_id))},
                .voters = plan.replicas,
                .endpoint = {.host = spec_.coordinator_host, .port = spec_.coordinator_port}},
               replica_events()),
      tick_(io) {}

// Where the other nodes reach this one: at the address by which it reaches the endpoint.
HostPort ReplicaHosting::own_place(const plan::JobPlan& plan, int port, bool founds) {
  std::string host = plan.spec.local_addr;
  if (host.empty()) {
    host =
        founds ? plan.spec.coordinator_host : machine::source_address(plan.spec.coordinator_host);
  }
  return {.host = host.empty() ? "127.0.0.1" : host, .port = port};
}

replicas::JobReplica::Events ReplicaHosting::replica_events() {
  return {.send =
              [this](const HostPort& to, const replicas::ReplicaMessage& message) {
                links_.send(to, replicas::encode(message));
              },
          .won = [this](const rendezvous::JobRecord& record) { on_won(record); },
          .lost = [this] { server_->stand_by(); },
          .moved =
              [this](const HostPort& at) {
                told_ = true;
                events_.coordinator(at.host, at.port);
              }};
}

server::AgentFront::ReplicaHooks ReplicaHosting::hooks() {
  return {.frame =
              [this](const std::string& payload) {
                const auto message = replicas::decode_replica_message(payload);
                if (!message || message->job_id != spec_.job_id) return false;
                replica_.receive(Clock::now(), *message);
                if (!ticks_) tick();
                return true;
              },
          .joined =
              [this](const wire::Join& join, const HostPort& at) {
                replica_.on_joined(Clock::now(), replicas::member_id(join.node_id), at,
                                   {.was_joined = join.was_joined, .last_round = join.last_round});
              },
          .gone =
              [this](const NodeId& node_id, bool left) {
                replica_.on_gone(Clock::now(), replicas::member_id(node_id), left);
              },
          .coordinator = [this] { return replica_.coordinator(); },
          .silence_of =
              [this](const NodeId& node_id) {
                return replica_.silence_of(replicas::member_id(node_id));
              }};
}

void ReplicaHosting::start() {
  server_->set_replica_hooks(hooks());
  server_->on_job_finished([this](const std::string& job_id, const wire::Finish& finish) {
    if (job_id != spec_.job_id) return;
    over_ = true;
    events_.job_finished(finish);
  });
  if (founds_) {
    replica_.found(Clock::now());
  } else {
    replica_.join(Clock::now());
  }
  tick();
}

void ReplicaHosting::note_voters() {
  if (!replica_.leads()) return voters_.reset();
  std::vector<replicas::MemberId> voters;
  if (replica_.is_settled()) {
    for (const auto& server : replica_.servers()) {
      if (server.votes) voters.push_back(server.id);
    }
  }
  std::ranges::sort(voters);
  if (voters_ == voters) return;
  voters_ = voters;
  tell_history();  // A new voter knows nothing yet.
  if (voters.empty()) {
    log::info("job {}: other ddp-runs are about to keep its record", spec_.job_id);
  } else {
    log::info("job {}: {} of its ddp-runs keep its record", spec_.job_id, voters.size());
  }
}

void ReplicaHosting::tick() {
  if (has_ended_) return;
  replica_.tick(Clock::now());
  note_voters();
  if (replica_.leads() && Clock::now() >= next_history_) tell_history();
  if (end_by_ && (!replica_.leads() || Clock::now() >= *end_by_)) return finish_end();
  // Where the job's record is not kept, nothing happens by itself.
  ticks_ = !replica_.servers().empty() || end_by_;
  if (ticks_) tick_.after(kTick, [this] { tick(); });
}

void ReplicaHosting::tell_history() {
  next_history_ = Clock::now() + kHistoryPeriod;
  if (replica_.servers().size() < 2) return;  // Nobody else can be the next.
  const nlohmann::json history = server_->history(spec_.job_id);
  const std::string text = history.is_null() ? "" : dump_json(history);
  next_history_ += kHistoryPeriod * std::ssize(text) / kHistoryBytes;
  if (!text.empty()) replica_.tell_history(text);
}

std::optional<rendezvous::JobHistory> ReplicaHosting::told_history() const {
  const auto& told = replica_.told_history();
  if (!told) return std::nullopt;
  try {
    const std::string_view text = told->text;
    return rendezvous::JobHistory::restored(parse_json(text), told->told);
  } catch (const nlohmann::json::exception& error) {
    log::warning(
        "job {}: its history begins anew, because what the earlier coordinator has told is "
        "not understood: {}",
        spec_.job_id, error.what());
    return std::nullopt;
  }
}

void ReplicaHosting::on_won(const rendezvous::JobRecord& record) {
  const auto later = [this](const std::function<void()>& what) { asio::post(io_, what); };
  server_->open(
      record,
      {.store =
           [this, later](const rendezvous::JobRecord& next, const std::function<void()>& stored) {
             next_history_ = {};  // The next tick tells what has happened.
             replica_.store(next, [later, stored] { later(stored); });
           },
       .confirm =
           [this, later](const std::function<void()>& done) {
             replica_.confirm([later, done] { later(done); });
           }},
      told_history());
  if (!told_ && founds_) return;  // The agent knows this address.
  events_.coordinator(at_.host, at_.port);
  events_.notice("this node coordinates the job from now on");
  if (!meeting_file_.empty())
    move_meeting(meeting_file_, {at_.host, at_.port, spec_.host, spec_.job_id});
  if (!record.finished) return;
  over_ = true;
  events_.job_finished(record.result);
}

void ReplicaHosting::end(std::function<void()> done) {
  ended_ = std::move(done);
  if (over_ || !replica_.leads() || !replica_.has_successor()) return finish_end();
  // First, the others learn that this node leaves. Otherwise the next coordinator would count it as
  // lost.
  server_->leave(spec_.job_id, spec_.node_id, fmt::format("node {} left", spec_.host), kLeaveLimit,
                 [this] { hand_over(); });
}

void ReplicaHosting::hand_over() {
  tell_history();
  replica_.hand_over();
  end_by_ = Clock::now() + kHandOverLimit;
}

void ReplicaHosting::finish_end() {
  has_ended_ = true;
  tick_.cancel();
  if (const auto done = std::exchange(ended_, nullptr)) done();
}

}  // namespace ddp::hosting
