#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "launcher/etcd/leadership.h"
#include "launcher/hosting/moving_hosting.h"
#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::hosting {

// This ddp-run's part in coordinating a job with --rdzv-backend etcd. It reports where the
// coordinator is. While this ddp-run is the leader, it runs the rendezvous daemon in this process.
// Everything happens on the thread of `io`.
class EtcdHosting : public MovingHosting {
 public:
  // plan.etcd is set. Errors are exit_error. Events::failed comes if etcd does not answer or
  // refuses, or the job is over.
  static Result<std::unique_ptr<EtcdHosting>> create(asio::io_context& io,
                                                     const plan::JobPlan& plan, Events events);

  void start() override { leadership_.start(); }
  server::Server* server() const override { return leadership_.leads() ? server_.get() : nullptr; }
  bool outlives_this_node() const override { return true; }
  void end(std::function<void()> done) override;

 private:
  EtcdHosting(asio::io_context& io, const plan::JobPlan& plan,
              std::shared_ptr<const net::TlsContext> tls, std::unique_ptr<etcd::EtcdClient> client,
              Events events);
  etcd::Leadership::Events leadership_events();
  std::optional<etcd::Leader> listen();
  std::string own_address() const;

  asio::io_context& io_;
  const config::JobSpec spec_;
  const flags::EtcdSettings settings_;
  const std::shared_ptr<const net::TlsContext> tls_;  // Null: none.
  Events events_;
  std::unique_ptr<etcd::EtcdClient> client_;
  etcd::Leadership leadership_;
  std::unique_ptr<server::Server> server_;
  bool loopback_told_ = false;
  bool open_told_ = false;
};

}  // namespace ddp::hosting
