#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "launcher/ddp_run/job_plan.h"
#include "launcher/etcd/leadership.h"
#include "launcher/server/server.h"

namespace ddp::run {

// This ddp-run's part in coordinating a job with --rdzv-backend etcd: it says where the coordinator
// is, and is the coordinator itself, with a rendezvous daemon in this process, while it holds the
// office. Everything happens on the thread of `io`.
class EtcdHosting {
 public:
  // All from the event loop; they must not destroy this object.
  struct Events {
    // Where the coordinator is from now on. Again whenever that changes.
    std::function<void(const std::string& host, int port)> coordinator;
    // This ddp-run is the coordinator and the job is over.
    std::function<void(const wire::Finish& finish)> job_finished;
    // This node cannot take part: etcd is not there or refuses, or the job is over. The exit status
    // and a line for people. Nothing follows.
    std::function<void(int exit_code, const std::string& why)> failed;
    std::function<void(const std::string& text)> notice;
  };

  // plan.etcd is set. Errors are exit_error.
  static Result<std::unique_ptr<EtcdHosting>> create(asio::io_context& io, const JobPlan& plan,
                                                     Events events);

  void start() { leadership_.start(); }
  // Null while another one coordinates.
  server::Server* server() const { return leadership_.leads() ? server_.get() : nullptr; }
  // Gives the office up; the other nodes go on without this one. Calls back within a second or so.
  void end(std::function<void()> done);

 private:
  EtcdHosting(asio::io_context& io, const JobPlan& plan, std::shared_ptr<const net::TlsContext> tls,
              std::unique_ptr<etcd::EtcdClient> client, Events events);
  etcd::Leadership::Events leadership_events();
  std::optional<etcd::Leader> listen();
  std::string own_address() const;

  asio::io_context& io_;
  const config::JobSpec spec_;
  const EtcdSettings settings_;
  const std::shared_ptr<const net::TlsContext> tls_;  // Null: none.
  Events events_;
  std::unique_ptr<etcd::EtcdClient> client_;
  etcd::Leadership leadership_;
  std::unique_ptr<server::Server> server_;
  bool loopback_told_ = false;
  bool open_told_ = false;
};

}  // namespace ddp::run
