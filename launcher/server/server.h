#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/net/tls.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/server/agent_front.h"
#include "launcher/server/refusals.h"
#include "launcher/server/store_front.h"

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
  // clients cannot prove it, so they are accepted only from loopback addresses and those of such
  // agents. Empty: anybody may connect. If it is not empty, auth::CryptoLibrary::load() must have
  // succeeded before.
  Secret token;
  // If set, agents must use TLS with a certificate of the same authority. Store clients are
  // accepted as with a token.
  std::shared_ptr<const net::TlsContext> tls;
  // Give every round an empty store and close the store connections of the round before. For
  // daemons that serve one job: PyTorch >= 2.5 does not prefix keys by restart, so keys of an old
  // round would be taken for the new one's.
  bool fresh_store_each_round = false;
  // Connections wait without an answer until open() is called.
  bool closed_at_first = false;
};

// Lives on one thread, that of `io`.
class Server {
 public:
  // kExists if the port is taken; the message has the address and the remedy.
  static Result<std::unique_ptr<Server>> listen(asio::io_context& io, const ServerOptions& options);
  virtual ~Server() = default;

  using JobFinishedCallback = std::function<void(const std::string& job_id, const wire::Finish&)>;

  virtual int port() const = 0;
  // ADDRESS:PORT as bound, for messages.
  virtual std::string endpoint() const = 0;
  virtual StoreFigures store_figures() const = 0;
  virtual RefusalCounts refusal_counts() const = 0;
  // Nothing before the first node has joined the job.
  virtual std::optional<rendezvous::JobStatus> job_status(const std::string& job_id) const = 0;
  // For jobs whose coordinator can move (etcd): starts with the record of the earlier coordinator,
  // and stores new records through `keeper` (see AgentFront). Only with closed_at_first.
  virtual void open(const rendezvous::JobRecord& record, AgentFront::RecordKeeper keeper) = 0;
  // `callback` is called once per job, when the job is over, from the event loop. It may destroy
  // the server. Members may still be reading their `finish`.
  virtual void on_job_finished(JobFinishedCallback callback) = 0;
  // Ends a job from outside (the user interrupted ddp-run).
  virtual void end_job(const std::string& job_id, int exit_code, const std::string& reason) = 0;
  // Calls back from the event loop when no agent is connected any more, or after `limit`. The
  // daemon can then end without cutting anybody off.
  virtual void drain(std::chrono::milliseconds limit, std::function<void()> done) = 0;
  // The node leaves, and this daemon with it, although the job goes on. Calls back from the event
  // loop when the others have been told, or after `limit`.
  virtual void leave(const std::string& job_id, const NodeId& node_id, const std::string& reason,
                     std::chrono::milliseconds limit, std::function<void()> done) = 0;
};

}  // namespace ddp::server
