#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/host_port.h"
#include "common/base/result.h"
#include "common/net/timer.h"
#include "launcher/hosting/moving_hosting.h"
#include "launcher/hosting/replica_links.h"
#include "launcher/plan/job_plan.h"
#include "launcher/replicas/job_replica.h"
#include "launcher/server/server.h"

namespace ddp::hosting {

// This ddp-run's part in a job whose ddp-runs keep its record together (launcher/replicas). Each
// has a daemon that listens; that of the coordinator is open, and those of the others stand by.
class ReplicaHosting : public MovingHosting {
 public:
  // `server`: the rendezvous at the job's endpoint, which this process hosts; null if another one
  // does. plan.replicas is at least 2. Errors are exit_error.
  static Result<std::unique_ptr<ReplicaHosting>> create(asio::io_context& io,
                                                        const plan::JobPlan& plan,
                                                        std::unique_ptr<server::Server> server,
                                                        Events events);

  int port() const { return server_->port(); }

  void start() override;
  server::Server* server() const override { return replica_.leads() ? server_.get() : nullptr; }
  bool outlives_this_node() const override { return replica_.has_successor(); }
  void end(std::function<void()> done) override;

 private:
  ReplicaHosting(asio::io_context& io, const plan::JobPlan& plan,
                 std::unique_ptr<server::Server> server, bool founds,
                 std::shared_ptr<const net::TlsContext> tls, Events events);
  static HostPort own_place(const plan::JobPlan& plan, int port, bool founds);
  replicas::JobReplica::Events replica_events();
  server::AgentFront::ReplicaHooks hooks();
  void tick();
  void note_voters();
  void on_won(const rendezvous::JobRecord& record);
  void tell_history();
  std::optional<rendezvous::JobHistory> told_history() const;
  void hand_over();
  void finish_end();

  asio::io_context& io_;
  const config::JobSpec spec_;
  const std::string meeting_file_;
  const bool founds_;
  Events events_;
  std::unique_ptr<server::Server> server_;
  const HostPort at_;
  ReplicaLinks links_;
  replicas::JobReplica replica_;
  net::Timer tick_;
  bool ticks_ = false;
  bool has_ended_ = false;
  // As last logged, in order; empty: they are about to change. Nothing while this one does not
  // lead.
  std::optional<std::vector<replicas::MemberId>> voters_;
  TimePoint next_history_;
  bool over_ = false;  // The job.
  bool told_ = false;  // Where the coordinator is, other than at first.
  std::optional<TimePoint> end_by_;
  std::function<void()> ended_;
};

}  // namespace ddp::hosting
