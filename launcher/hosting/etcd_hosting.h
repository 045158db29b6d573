#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "launcher/etcd/leadership.h"
#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::hosting {

// This ddp-run's part in coordinating a job with --rdzv-backend etcd. It reports where the
// coordinator is. While this ddp-run is the leader, it runs the rendezvous daemon in this process.
// Everything happens on the thread of `io`.
class EtcdHosting {
 public:
  // All are called from the event loop and must not destroy this object.
  struct Events {
    // Where the coordinator is. Called again whenever that changes.
    std::function<void(const std::string& host, int port)> coordinator;
    // The job is over, and this ddp-run was its coordinator.
    std::function<void(const wire::Finish& finish)> job_finished;
    // This node cannot take part: etcd does not answer or refuses, or the job is over. Gives the
    // exit status and a line for people. No other event follows.
    std::function<void(int exit_code, const std::string& why)> failed;
    std::function<void(const std::string& text)> notice;
  };

  // plan.etcd is set. Errors are exit_error.
  static Result<std::unique_ptr<EtcdHosting>> create(asio::io_context& io,
                                                     const plan::JobPlan& plan, Events events);

  void start() { leadership_.start(); }
  // The daemon; null while another node coordinates.
  server::Server* server() const { return leadership_.leads() ? server_.get() : nullptr; }
  // Gives up the leadership; the other nodes go on without this one. Calls back within about a
  // second.
  void end(std::function<void()> done);

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
