#include "launcher/server/server.h"

#include <unistd.h>

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/auth/handshake.h"
#include "common/base/host_port.h"
#include "common/log/log.h"
#include "common/net/socket_options.h"
#include "common/net/timer.h"
#include "common/wire/frame.h"
#include "launcher/server/auth_session.h"

namespace ddp::server {
namespace {

// How long a client's TLS handshake may take.
constexpr Duration kTlsLimit{10'000};
// First byte of a TLS connection: a handshake record.
constexpr char kTlsHandshake = 0x16;
// The answer of a daemon without TLS: a fatal handshake_failure.
constexpr std::string_view kTlsAlert("\x15\x03\x03\x00\x02\x02\x28", 7);

}  // namespace

// A connection whose protocol is not known yet. It may be silent for ever, without a time limit:
// PyTorch 1.13 keeps such a connection for each store, and uses a whole core if it is closed.
class Server::Newcomer : public net::ByteStream::Handler {
 public:
  Newcomer(Server& server, std::uint64_t id) : server_(server), id_(id) {}
  // For a stream inside TLS: its first bytes must come soon.
  Newcomer(Server& server, std::uint64_t id, asio::io_context& io);
  void on_bytes(std::string_view bytes) override;
  void on_closed(const Error& why) override;

 private:
  Server& server_;
  std::uint64_t id_;
  bool secure_ = false;
  std::optional<net::Timer> limit_;
  std::string received_;
};

Server::Server(asio::io_context& io, std::unique_ptr<net::Listener> listener,
               const ServerOptions& options)
    : listener_(std::move(listener)),
      options_(options),
      store_(options.store),
      agents_(io, listener_->port(), !options.token.empty(),
              {[this](const std::string& job_id) {
                 trace_.on_round_begins(job_id);
                 if (options_.fresh_store_each_round) store_.reset();
               },
               [this](const std::string& job_id, const wire::Finish& finish) {
                 trace_.on_job_finished(job_id);
                 const auto callback =
                     job_finished_;  // A copy, because the callback may destroy the server.
                 if (callback) callback(job_id, finish);
               },
               [this](RefusalReason why, const std::string& remote) { refused_.note(why, remote); },
               [this](const std::shared_ptr<net::Stream>& stream) { take_stream(stream); },
               [this](rendezvous::ConnectionId from, const wire::TraceEvents& events) {
                 trace_.on_events(from, events);
               }}),
      trace_(io, {[this](const std::string& job_id) { return agents_.agents_of(job_id); },
                  [this](rendezvous::ConnectionId agent, const wire::ReadTrace& question) {
                    agents_.ask_trace(agent, question);
                  },
                  [this](const std::string& job_id) { return agents_.history_of(job_id); }}),
      site_(io, options.token, options.pages, site_sources()) {
  if (!options_.any_user) gate_.emplace();
  if (gate_ && gate_->blind()) {
    log::warning(
        "other users of this machine are let in, too: the system does not tell whose a connection "
        "is ({})",
        gate_->blind()->message);
  }
  if (!options_.token.empty() || options_.tls) agents_.guard_links();
  if (options.stands_by) stand_by();
  if (!options.closed_at_first) begin_listening();
}

Server::~Server() {
  trace_.end();
  for (const auto& [id, stream] : streams_) stream->close();
}

void Server::begin_listening() {
  if (std::exchange(listens_, true)) return;
  listener_->start([this](asio::ip::tcp::socket socket) { welcome(std::move(socket)); });
}

std::optional<rendezvous::JobStatus> Server::job_status(const std::string& job_id) const {
  for (rendezvous::JobStatus& job : agents_.status()) {
    if (job.job_id == job_id) return std::move(job);
  }
  return std::nullopt;
}

nlohmann::json Server::page_document(const std::string& job_id) const {
  nlohmann::json document = site_.document();
  nlohmann::json one = nlohmann::json::object();
  const auto job = document.at("jobs").find(job_id);
  if (job != document.at("jobs").end()) one[job_id] = *job;
  document["jobs"] = std::move(one);
  const std::string report = agents_.failure_text(job_id);
  if (!report.empty()) document["report"] = report;
  return document;
}

void Server::open(const rendezvous::JobRecord& record, AgentFront::RecordKeeper keeper,
                  std::optional<rendezvous::JobHistory> history) {
  took_over_ = record.next_round > 0;
  agents_.restore(record, std::move(history));
  agents_.keep_records(std::move(keeper));
  stands_by_ = false;
  begin_listening();
}

nlohmann::json Server::history(const std::string& job_id) const {
  const nlohmann::json jobs = agents_.history({job_id});
  return jobs.empty() ? nlohmann::json() : jobs.at(0);
}

void Server::stand_by() {
  stands_by_ = true;
  trace_.end();
  site_.end_feeds();
  agents_.stand_by();
}

Server::Newcomer::Newcomer(Server& server, std::uint64_t id, asio::io_context& io)
    : server_(server), id_(id), secure_(true), limit_(std::in_place, io) {
  limit_->after(kTlsLimit, [this] { server_.expire(id_); });
}

void Server::Newcomer::on_bytes(std::string_view bytes) {
  received_.append(bytes);
  server_.hand_over(id_, secure_, received_);
}

void Server::Newcomer::on_closed(const Error& why) {
  if (why.code == std::errc::permission_denied) server_.refuse_tls(id_, why.message);
  server_.forget(id_);
}

bool Server::is_admitted(asio::ip::tcp::socket& socket) {
  using Verdict = UserGate::Verdict;
  if (!gate_) return true;
  const Verdict verdict = gate_->judge(socket.native_handle());
  if (admits(verdict)) return true;
  // It wants nothing more. But it may have sent something that nobody may do for it.
  if (verdict == Verdict::kGone) {
    refused_.count(RefusalReason::kNobodys);
    return false;
  }
  std::error_code ignored;
  const asio::ip::tcp::endpoint remote = socket.remote_endpoint(ignored);
  const std::string name = host_and_port(net::address_text(remote.address()), remote.port());
  if (verdict == Verdict::kUnknown) {
    refused_.note(RefusalReason::kNobodys, name);
  } else {
    refused_.note(RefusalReason::kOtherUser, name,
                  fmt::format("it belongs to user {} of this machine, and this process to user {} "
                              "(--any-user lets in all users)",
                              gate_->other_user(), ::geteuid()));
  }
  return false;
}

void Server::welcome(asio::ip::tcp::socket socket) {
  if (!is_admitted(socket)) return cut(UniqueFd(socket.release()));
  if (is_full()) return turn_away();
  const std::uint64_t id = next_id_++;
  auto stream = net::ByteStream::create(std::move(socket), {});
  streams_.emplace(id, stream);
  stream->set_handler(std::make_shared<Newcomer>(*this, id));
}

// Accepts and closes a connection beyond the limit.
void Server::turn_away() {
  ++turned_away_;
  if (!full_.admit(Clock::now())) return;
  log::warning(
      "closed a new connection: {} are open, which is the limit (--max-connections); start "
      "ddp-rendezvous with a higher limit, or end clients that are not needed ({} closed so far)",
      options_.max_connections, turned_away_);
}

void Server::hand_over(std::uint64_t id, bool secure, std::string_view received) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const std::shared_ptr<net::ByteStream> stream = found->second;
  if (received[0] == 'G' || received[0] == 'H') {
    auto session = std::make_shared<HttpSession>(
        stream, secure,
        [this](const HttpRequest& request, const std::shared_ptr<HttpSession>& asked) {
          site_.answer(request, asked);
        },
        [this, id] { forget(id); });
    stream->set_handler(session);
    return session->on_bytes(received);
  }
  if (received[0] == kTlsHandshake && !secure) return begin_tls(id, stream, received);
  if (received[0] != wire::kRendezvousPreamble[0])
    return take_store_client(id, stream, secure, received);
  const std::string_view start = received.substr(0, wire::kRendezvousPreamble.size());
  const bool is_known = start == wire::kRendezvousPreamble || start == auth::kPreamble;
  if (is_known && options_.tls && !secure) {
    ask_for_tls(stream, start == auth::kPreamble);
  } else if (start == wire::kRendezvousPreamble) {
    take_agent(id, stream, received.substr(start.size()));
  } else if (start == auth::kPreamble) {
    authenticate(id, stream, received);
  } else if (start.size() == wire::kRendezvousPreamble.size() &&
             start.starts_with(wire::kAnyPreamble)) {
    refuse_version(stream, static_cast<unsigned char>(start.back()));
  } else if (!wire::kRendezvousPreamble.starts_with(start)) {
    forget(id);
    stream->close();
  }
}

// Each side knows only its own version, so each tells its own user.
void Server::refuse_version(const std::shared_ptr<net::ByteStream>& stream, unsigned char version) {
  refused_.note(RefusalReason::kVersion, stream->remote(), wire::unknown_version(version));
  stream->send(wire::kRendezvousPreamble);
  stream->close_after_writes();
}

// Takes an agent, or another client of ours, whose TLS begins with these bytes.
void Server::begin_tls(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                       std::string_view received) {
  if (options_.tls) {
    stream->set_handler(std::make_shared<Newcomer>(*this, id, stream->io()));
    return stream->set_filter(options_.tls->server(), received);
  }
  refused_.note(RefusalReason::kTlsUnknown, stream->remote());
  stream->send(kTlsAlert);
  stream->close_after_writes();
}

void Server::refuse_tls(std::uint64_t id, std::string_view why) {
  const auto found = streams_.find(id);
  if (found != streams_.end()) refused_.note(RefusalReason::kTls, found->second->remote(), why);
}

void Server::expire(std::uint64_t id) {
  refuse_tls(id, "it did not finish the TLS handshake");
  const auto found = streams_.extract(id);
  if (!found.empty()) found.mapped()->close();
}

void Server::ask_for_tls(const std::shared_ptr<net::ByteStream>& stream, bool has_token) {
  refused_.note(RefusalReason::kNoTls, stream->remote());
  if (has_token) {
    stream->send(auth::needs_tls_answer());
  } else {
    stream->send(wire::kRendezvousPreamble);
    stream->send(wire::encode_frame(wire::encode(wire::CoordinatorMessage(wire::Refused{
        "it accepts TLS only; give this node --tls-cert, --tls-key and --tls-ca as the "
        "others"}))));
  }
  stream->close_after_writes();
}

void Server::authenticate(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                          std::string_view received) {
  auto session = std::make_shared<AuthSession>(
      stream, options_.token,
      AuthSession::Events{
          .admitted =
              [this, id, stream](const std::string& job_id, std::string_view rest) {
                forget(id);
                agents_.adopt(stream, rest, job_id);
              },
          .refused = [this, stream](RefusalReason why) { refused_.note(why, stream->remote()); },
          .ended = [this, id] { forget(id); }});
  stream->set_handler(session);
  session->on_bytes(received);
}

// Takes an agent without a token.
void Server::take_agent(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                        std::string_view rest) {
  stream->send(wire::kRendezvousPreamble);
  if (options_.token.empty()) {
    forget(id);
    return agents_.adopt(stream, rest);
  }
  refused_.note(RefusalReason::kNoToken, stream->remote());
  stream->send(wire::encode_frame(wire::encode(wire::CoordinatorMessage(
      wire::Refused{"this job has a token, and this node has none; give it the token of the other "
                    "nodes: --rdzv-token-file FILE, or DDP_RDZV_TOKEN in its environment"}))));
  stream->close_after_writes();
}

void Server::take_store_client(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                               bool secure, std::string_view received) {
  forget(id);
  const std::string address = stream->remote_address();
  const bool is_open = options_.token.empty() && !options_.tls;
  if (stands_by_) return stream->close();
  if (secure || is_open || is_loopback(address)) {
    return store_.adopt(stream, received);
  }
  refused_.note(RefusalReason::kStranger, stream->remote());
  stream->close();
}

// Takes a store client that an agent vouches for.
void Server::take_stream(const std::shared_ptr<net::Stream>& stream) {
  if (is_full()) turn_away();
  if (is_full() || stands_by_) return stream->close();
  store_.adopt(stream, {});
}

DaemonFacts Server::facts() const {
  return {.jobs = agents_.status(),
          .store = store_.figures(),
          .running_jobs = agents_.num_running_jobs(),
          .finished_jobs = agents_.num_finished_jobs(),
          .rounds = agents_.num_rounds(),
          .agents = agents_.num_agents(),
          .connections = num_connections(),
          .turned_away = turned_away_,
          .refused = refused_.counts()};
}

Site::Sources Server::site_sources() {
  return {
      .facts = [this] { return facts(); },
      .history = [this](const std::set<std::string>& job_ids) { return agents_.history(job_ids); },
      .output =
          [this](const std::string& job_id, Rank rank, AgentFront::OutputCallback done) {
            agents_.ask_output(job_id, rank, std::move(done));
          },
      .failure_text = [this](const std::string& job_id) { return agents_.failure_text(job_id); },
      .trace =
          [this](const std::string& job_id, std::shared_ptr<net::ByteStream> stream) {
            trace_.add(job_id, std::make_shared<TraceStream>(std::move(stream)));
          },
      .trace_is_full = [this] { return trace_.is_full(); },
      .elsewhere = [this] { return agents_.coordinator_elsewhere(); },
      .refused = [this](RefusalReason why,
                        const std::string& remote) { refused_.note(why, remote); }};
}

Result<std::unique_ptr<Server>> Server::listen(asio::io_context& io, const ServerOptions& options) {
  auto listener = net::Listener::open(io, options.bind_address, options.port);
  if (!listener) return listener.error();
  return std::unique_ptr<Server>(new Server(io, std::move(*listener), options));
}

}  // namespace ddp::server
