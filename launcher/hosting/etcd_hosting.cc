#include "launcher/hosting/etcd_hosting.h"

#include <algorithm>
#include <utility>

#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "launcher/hosting/hosting.h"
#include "launcher/machine/machine.h"

namespace ddp::hosting {
namespace {

int status_of(const Error& error) {
  return error.code == Errc::kTimeout ? kExitJoinTimeout : kExitInvalidValue;
}

}  // namespace

Result<std::unique_ptr<EtcdHosting>> EtcdHosting::create(asio::io_context& io,
                                                         const plan::JobPlan& plan, Events events) {
  const flags::EtcdSettings& settings = *plan.etcd;
  auto client =
      etcd::EtcdClient::create(io, {.endpoints = flags::etcd_urls(settings), .tls = settings.tls});
  if (!client) return exit_error(kExitInvalidValue, "{}", client.error().message);
  auto tls = load_tls(plan.spec);
  if (!tls) return tls.error();
  return std::unique_ptr<EtcdHosting>(
      new EtcdHosting(io, plan, std::move(*tls), std::move(*client), std::move(events)));
}

EtcdHosting::EtcdHosting(asio::io_context& io, const plan::JobPlan& plan,
                         std::shared_ptr<const net::TlsContext> tls,
                         std::unique_ptr<etcd::EtcdClient> client, Events events)
    : io_(io),
      spec_(plan.spec),
      settings_(*plan.etcd),
      tls_(std::move(tls)),
      events_(std::move(events)),
      client_(std::move(client)),
      leadership_(io, *client_,
                  {.prefix = settings_.prefix,
                   .job_id = spec_.job_id,
                   .patience = Duration(spec_.rules.join_timeout_ms)},
                  leadership_events()) {}

etcd::Leadership::Events EtcdHosting::leadership_events() {
  return {
      .stand = [this] { return listen(); },
      .won =
          [this](const rendezvous::JobRecord& record) {
            server_->open(
                record,
                {.store =
                     [this](const rendezvous::JobRecord& next, std::function<void()> stored) {
                       leadership_.store(next, std::move(stored));
                     },
                 .confirm =
                     [this](std::function<void()> done) { leadership_.confirm(std::move(done)); }});
            // The last coordinator may leave before this node's own agent has ended. No agent will
            // bring this result here.
            if (record.finished) events_.job_finished(record.result);
          },
      .lost = [this](const std::string&) { server_.reset(); },
      .leader =
          [this](const etcd::Leader& leader) { events_.coordinator(leader.address, leader.port); },
      .was_over =
          [this](const wire::Finish& result) {
            events_.failed(kExitRefused,
                           fmt::format("job {} is over: {}; for another job choose another "
                                       "--rdzv-id",
                                       spec_.job_id, result.summary));
          },
      .failed = [this](const Error& why) { events_.failed(status_of(why), why.message); },
      .notice = [this](const std::string& text) { events_.notice(text); },
  };
}

// Where the other nodes reach this one: the local address of its connection to etcd. If that etcd
// runs on this machine, the address is loopback, and another endpoint is tried.
std::string EtcdHosting::own_address() const {
  if (!spec_.local_addr.empty()) return spec_.local_addr;
  std::string address = client_->local_address();
  if (!is_loopback(address)) return address;
  for (const HostPort& endpoint : settings_.endpoints) {
    const std::string source = machine::source_address(endpoint.host);
    if (!source.empty() && !is_loopback(source)) return source;
  }
  return address;
}

// Listens, but serves nobody until the record of the earlier coordinators has come from etcd.
std::optional<etcd::Leader> EtcdHosting::listen() {
  const bool is_alone = spec_.rules.max_nodes == 1 && !plan::is_guarded(spec_);
  const std::string address = is_alone ? "127.0.0.1" : own_address();
  if (is_loopback(address) && spec_.rules.max_nodes > 1 && !std::exchange(loopback_told_, true)) {
    events_.notice(
        "--rdzv-endpoint names etcd by loopback addresses only, so the other nodes look for this "
        "one at " +
        address + "; if they are on other machines, give each node its --local-addr");
  }
  server::ServerOptions options;
  options.bind_address = is_loopback(address) ? address : "";
  options.token = spec_.rdzv_token;
  options.tls = tls_;
  options.any_user = spec_.any_user;
  options.fresh_store_each_round = true;
  options.closed_at_first = true;
  auto server = server::Server::listen(io_, options);
  if (!server) {
    events_.notice(fmt::format("the rendezvous cannot run here: {}", server.error().message));
    return std::nullopt;
  }
  server_ = std::move(*server);
  const std::string warning = plan::warning_if_open(spec_, options.bind_address);
  if (!warning.empty() && !std::exchange(open_told_, true)) events_.notice(warning);
  server_->on_job_finished([this](const std::string& job_id, const wire::Finish& finish) {
    if (job_id == spec_.job_id) events_.job_finished(finish);
  });
  return etcd::Leader{
      .node_id = spec_.node_id, .host = spec_.host, .address = address, .port = server_->port()};
}

void EtcdHosting::end(std::function<void()> done) {
  // Second, the leadership is given up, so that it is free when the others find this daemon gone.
  auto give_up_office = [this, done = std::move(done)] {
    leadership_.stop([this, done] {
      server_.reset();
      done();
    });
  };
  // First, the others learn that this node leaves. Otherwise the next coordinator would count it as
  // lost.
  if (!server_) return give_up_office();
  server_->leave(spec_.job_id, spec_.node_id, fmt::format("node {} left", spec_.host), kLeaveLimit,
                 std::move(give_up_office));
}

}  // namespace ddp::hosting
