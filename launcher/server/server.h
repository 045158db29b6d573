#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/net/byte_stream.h"
#include "common/net/listener.h"
#include "common/net/tls.h"
#include "common/process/user_gate.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/server/agent_front.h"
#include "launcher/server/log_limit.h"
#include "launcher/server/pages.h"
#include "launcher/server/refusals.h"
#include "launcher/server/site.h"
#include "launcher/server/store_front.h"
#include "launcher/server/trace_feed.h"
#include "launcher/server/trace_sink.h"

// The daemon. One listening socket accepts c10d store clients, agents and HTTP clients, which the
// first byte tells apart. They feed StoreCore and RendezvousCore. ddp-rendezvous runs the daemon
// alone; ddp-run runs it inside its own process.
namespace ddp::server {

struct ServerOptions {
  std::string bind_address;  // Numeric; empty: all addresses, IPv6 and IPv4.
  int port = 0;              // 0: the system picks one.
  // Connections of all kinds together; 0: as many as there are descriptors for. Further ones are
  // accepted and closed at once, with a log line that names --max-connections.
  std::size_t max_connections = 0;
  StoreOptions store;
  // More pages of plain text, by their paths.
  std::map<std::string, std::string> pages;
  // The job's secret. Agents must prove that they know it, and the daemon proves it to them. Store
  // clients cannot prove it, so they are accepted only from loopback addresses and through agents.
  // Empty: anybody may connect. If it is not empty, auth::CryptoLibrary::load() must have
  // succeeded before.
  Secret token;
  // If set, agents must use TLS with a certificate of the same authority. Store clients are
  // accepted as with a token.
  std::shared_ptr<const net::TlsContext> tls;
  // Let in processes of other users of this machine. Otherwise only this process's own user and
  // root are let in from this machine, whatever they ask for.
  bool any_user = false;
  // Give every round an empty store and close the store connections of the round before. For
  // daemons that serve one job: PyTorch >= 2.5 does not prefix keys by restart, so keys of an old
  // round would be taken for the new one's.
  bool fresh_store_each_round = false;
  // Connections wait without an answer until open() is called.
  bool closed_at_first = false;
  // Another process coordinates until open() is called: agents are told where, store clients are
  // closed.
  bool stands_by = false;
};

// Lives on one thread, that of `io`.
class Server {
 public:
  // kExists if the port is taken; the message has the address and the remedy.
  static Result<std::unique_ptr<Server>> listen(asio::io_context& io, const ServerOptions& options);
  ~Server();  // Closes every connection.
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  using JobFinishedCallback = std::function<void(const std::string& job_id, const wire::Finish&)>;

  int port() const { return listener_->port(); }
  // ADDRESS:PORT as bound, for messages.
  std::string endpoint() const { return listener_->endpoint(); }
  // What /status and /metrics show.
  DaemonFacts facts() const;
  // What the page shows of one job, with the whole report as "report".
  nlohmann::json page_document(const std::string& job_id) const;
  // Nothing before the first node has joined the job.
  std::optional<rendezvous::JobStatus> job_status(const std::string& job_id) const;
  // For jobs whose coordinator can move: starts with the record of the earlier coordinator and with
  // the history that it has told, if it has, and stores new records through `keeper` (see
  // AgentFront).
  void open(const rendezvous::JobRecord& record, AgentFront::RecordKeeper keeper,
            std::optional<rendezvous::JobHistory> history = {});
  // What the next coordinator is told of a job, see JobHistory::restored(); null if there is none.
  nlohmann::json history(const std::string& job_id) const;
  void set_replica_hooks(AgentFront::ReplicaHooks hooks) {
    agents_.set_replica_hooks(std::move(hooks));
  }
  // The opposite of open(): another process coordinates. The store stays, because the workers of
  // the running round may need it, until the next round begins under this daemon.
  void stand_by();
  // `callback` is called once per job, when the job is over, from the event loop. It may destroy
  // the server. Members may still be reading their `finish`.
  void on_job_finished(JobFinishedCallback callback) { job_finished_ = std::move(callback); }
  // Ends a job from outside (the user interrupted ddp-run).
  void end_job(const std::string& job_id, int exit_code, const std::string& reason) {
    agents_.end_job(job_id, exit_code, reason);
  }
  // It goes on with a job that another process has coordinated before.
  bool took_over() const { return took_over_; }
  // Gives the sink what the workers of the job do from now on.
  void trace(const std::string& job_id, std::shared_ptr<TraceSink> sink) {
    trace_.add(job_id, std::move(sink));
  }
  // This process ends, so what is traced ends here.
  void end_traces() { trace_.end(); }
  // This process ends: browsers are shown what `last` gives, and that it is the end. Calls back at
  // once if there are none, and else within LiveFeed::kLastLimit.
  void finish_feeds(const std::function<nlohmann::json()>& last, std::function<void()> done) {
    site_.finish_feeds(last, std::move(done));
  }
  // Calls back from the event loop when no agent is connected any more, or after `limit`. The
  // daemon can then end without cutting anybody off.
  void drain(std::chrono::milliseconds limit, std::function<void()> done) {
    agents_.drain(limit, std::move(done));
  }
  // The node leaves, and this daemon with it, although the job goes on. Calls back from the event
  // loop when the others have been told, or after `limit`.
  void leave(const std::string& job_id, const NodeId& node_id, const std::string& reason,
             std::chrono::milliseconds limit, std::function<void()> done) {
    agents_.leave(job_id, node_id, reason, limit, std::move(done));
  }

 private:
  class Newcomer;

  Server(asio::io_context& io, std::unique_ptr<net::Listener> listener,
         const ServerOptions& options);
  std::size_t num_connections() const {
    return agents_.num_agents() + agents_.num_store_links() + store_.num_connections() +
           streams_.size();
  }
  void begin_listening();
  void welcome(asio::ip::tcp::socket socket);
  // Whether the connection may come from the user that has made it; if not, it is counted.
  bool is_admitted(asio::ip::tcp::socket& socket);
  bool is_full() const {
    return options_.max_connections > 0 && num_connections() >= options_.max_connections;
  }
  void turn_away();
  // Gives the newcomer's connection to the protocol of its first bytes, unless they are too few.
  void hand_over(std::uint64_t id, bool secure, std::string_view received);
  void refuse_tls(std::uint64_t id, std::string_view why);
  void expire(std::uint64_t id);
  void forget(std::uint64_t id) { streams_.erase(id); }
  void begin_tls(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                 std::string_view received);
  void refuse_version(const std::shared_ptr<net::ByteStream>& stream, unsigned char version);
  void ask_for_tls(const std::shared_ptr<net::ByteStream>& stream, bool has_token);
  void authenticate(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                    std::string_view received);
  void take_agent(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                  std::string_view rest);
  void take_store_client(std::uint64_t id, const std::shared_ptr<net::ByteStream>& stream,
                         bool secure, std::string_view received);
  void take_stream(const std::shared_ptr<net::Stream>& stream);
  Site::Sources site_sources();

  std::unique_ptr<net::Listener> listener_;
  ServerOptions options_;
  bool stands_by_ = false;
  bool took_over_ = false;
  bool listens_ = false;
  JobFinishedCallback job_finished_;
  StoreFront store_;
  LogLimit full_{1, Duration(10'000)};
  std::uint64_t turned_away_ = 0;
  Refusals refused_;
  std::optional<UserGate> gate_;  // Nothing if any user is let in.
  AgentFront agents_;
  TraceFeed trace_;
  Site site_;
  std::unordered_map<std::uint64_t, std::shared_ptr<net::ByteStream>> streams_;  // New and HTTP.
  std::uint64_t next_id_ = 1;
};

}  // namespace ddp::server
