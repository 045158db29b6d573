#include "launcher/server/server.h"

#include <cstdint>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "common/log/log.h"
#include "common/net/byte_stream.h"
#include "common/net/listener.h"
#include "common/wire/frame.h"
#include "launcher/server/agent_front.h"
#include "launcher/server/http_session.h"
#include "launcher/server/log_limit.h"

namespace ddp::server {
namespace {

class ServerImpl;

// A connection that has not said yet which protocol it speaks. It may be silent for ever: PyTorch
// 1.13 keeps such a connection per store, and burns a core when it is closed.
class Newcomer : public net::ByteStream::Handler {
 public:
  Newcomer(ServerImpl& server, std::uint64_t id) : server_(server), id_(id) {}
  void on_bytes(std::string_view bytes) override;
  void on_closed(const Error& why) override;

 private:
  ServerImpl& server_;
  std::uint64_t id_;
  std::string received_;
};

class ServerImpl : public Server {
 public:
  ServerImpl(asio::io_context& io, std::unique_ptr<net::Listener> listener,
             const ServerOptions& options)
      : listener_(std::move(listener)),
        options_(options),
        store_(options.store),
        agents_(io, listener_->port(),
                {[this](const std::string&) { on_round_begins(); },
                 [this](const std::string& job_id, const wire::Finish& finish) {
                   const auto callback = job_finished_;  // A copy: it may destroy the server.
                   if (callback) callback(job_id, finish);
                 }}) {
    if (!options.closed_at_first) begin_listening();
  }

  ~ServerImpl() override {
    for (const auto& [id, stream] : streams_) stream->close();
  }

  int port() const override { return listener_->port(); }
  std::string endpoint() const override { return listener_->endpoint(); }
  StoreFigures store_figures() const override { return store_.figures(); }
  void open(const rendezvous::JobRecord& record, AgentFront::RecordKeeper keeper) override {
    agents_.restore(record);
    agents_.keep_records(std::move(keeper));
    begin_listening();
  }
  void on_job_finished(JobFinishedCallback callback) override {
    job_finished_ = std::move(callback);
  }
  void end_job(const std::string& job_id, int exit_code, const std::string& reason) override {
    agents_.end_job(job_id, exit_code, reason);
  }
  void leave(const std::string& job_id, const NodeId& node_id, const std::string& reason,
             std::chrono::milliseconds limit, std::function<void()> done) override {
    agents_.leave(job_id, node_id, reason, limit, std::move(done));
  }
  void drain(std::chrono::milliseconds limit, std::function<void()> done) override {
    agents_.drain(limit, std::move(done));
  }

  // Gives the newcomer's connection to the protocol of its first bytes, unless they are too few.
  void hand_over(std::uint64_t id, std::string_view received);
  void forget(std::uint64_t id) { streams_.erase(id); }

 private:
  std::size_t num_connections() const {
    return agents_.num_agents() + store_.num_connections() + streams_.size();
  }
  void begin_listening() {
    listener_->start([this](asio::ip::tcp::socket socket) { welcome(std::move(socket)); });
  }
  void welcome(asio::ip::tcp::socket socket);
  void turn_away();
  void on_round_begins();
  std::optional<HttpPage> page(std::string_view path) const;
  std::string metrics() const;

  std::unique_ptr<net::Listener> listener_;
  ServerOptions options_;
  JobFinishedCallback job_finished_;
  StoreFront store_;
  LogLimit refusals_{1, Duration(10'000)};
  std::uint64_t turned_away_ = 0;
  AgentFront agents_;
  std::unordered_map<std::uint64_t, std::shared_ptr<net::ByteStream>> streams_;  // New and HTTP.
  std::uint64_t next_id_ = 1;
};

void Newcomer::on_bytes(std::string_view bytes) {
  received_.append(bytes);
  server_.hand_over(id_, received_);
}

void Newcomer::on_closed(const Error& /*why*/) { server_.forget(id_); }

void ServerImpl::welcome(asio::ip::tcp::socket socket) {
  if (options_.max_connections > 0 && num_connections() >= options_.max_connections) {
    return turn_away();
  }
  const std::uint64_t id = next_id_++;
  auto stream = net::ByteStream::create(std::move(socket), {});
  streams_.emplace(id, stream);
  stream->set_handler(std::make_shared<Newcomer>(*this, id));
}

// Its connection closes with the socket.
void ServerImpl::turn_away() {
  ++turned_away_;
  if (!refusals_.admit(Clock::now())) return;
  log::warning(
      "closed a new connection: {} are open, the limit of --max-connections; start ddp-rendezvous "
      "with a higher one, or end clients that are not needed ({} closed so far)",
      options_.max_connections, turned_away_);
}

void ServerImpl::hand_over(std::uint64_t id, std::string_view received) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const std::shared_ptr<net::ByteStream> stream = found->second;
  const std::string_view preamble = wire::kRendezvousPreamble;
  if (received[0] == 'G' || received[0] == 'H') {
    auto session = std::make_shared<HttpSession>(
        stream, [this](std::string_view path) { return page(path); }, [this, id] { forget(id); });
    stream->set_handler(session);
    return session->on_bytes(received);
  }
  if (received[0] == preamble[0] && preamble.starts_with(received)) {
    if (received.size() < preamble.size()) return;
  }
  streams_.erase(found);
  if (received.starts_with(preamble)) {
    stream->send(preamble);
    agents_.adopt(stream, received.substr(preamble.size()));
  } else if (received[0] == preamble[0]) {
    stream->close();  // A version of the protocol that is not ours.
  } else {
    store_.adopt(stream, received);
  }
}

void ServerImpl::on_round_begins() {
  if (options_.fresh_store_each_round) store_.reset();
}

std::optional<HttpPage> ServerImpl::page(std::string_view path) const {
  if (path == "/status") return HttpPage{"application/json", agents_.status_json() + "\n"};
  if (path == "/metrics") return HttpPage{"text/plain; version=0.0.4", metrics()};
  const auto more = options_.pages.find(std::string(path));
  if (more == options_.pages.end()) return std::nullopt;
  return HttpPage{"text/plain; charset=utf-8", more->second};
}

std::string ServerImpl::metrics() const {
  std::string out;
  const auto add = [&out](std::string_view name, std::string_view type, std::string_view help,
                          std::uint64_t value) {
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
  };
  add("ddp_jobs_running", "gauge", "Jobs that have begun a round and are not over.",
      agents_.num_running_jobs());
  add("ddp_jobs_finished_total", "counter", "Jobs that are over.", agents_.num_finished_jobs());
  add("ddp_rounds_total", "counter", "Rounds begun by all jobs.", agents_.num_rounds());
  add("ddp_agents", "gauge", "Agents connected.", agents_.num_agents());
  const StoreFigures store = store_.figures();
  add("ddp_store_keys", "gauge", "Keys in the store.", store.keys);
  add("ddp_store_bytes", "gauge", "Bytes of its keys and values.", store.bytes);
  add("ddp_store_connections", "gauge", "Store clients connected.", store.connections);
  add("ddp_store_waits", "gauge", "Store clients that wait for keys.", store.waits);
  add("ddp_store_requests_total", "counter", "Store requests served.", store.all_requests());
  add("ddp_connections", "gauge", "Connections of every kind.", num_connections());
  add("ddp_connections_turned_away_total", "counter", "Connections beyond --max-connections.",
      turned_away_);
  return out;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::listen(asio::io_context& io, const ServerOptions& options) {
  auto listener = net::Listener::open(io, options.bind_address, options.port);
  if (!listener) return listener.error();
  return std::unique_ptr<Server>(std::make_unique<ServerImpl>(io, std::move(*listener), options));
}

}  // namespace ddp::server
