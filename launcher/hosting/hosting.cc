#include "launcher/hosting/hosting.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "common/base/exit_error.h"
#include "common/net/frame_connection.h"

namespace ddp::hosting {
namespace {

constexpr std::chrono::milliseconds kProbeLimit{5'000};
// A program that has the port but takes no connection may be starting or ending, so the probe is
// repeated.
constexpr int kProbes = 10;
constexpr std::chrono::milliseconds kProbePause{100};

// Success if a rendezvous answers at this host and the endpoint's port.
Result<void> probe(asio::io_context& io, const config::JobSpec& spec,
                   const std::shared_ptr<const net::TlsContext>& tls, const std::string& host) {
  std::optional<Result<void>> answer;
  net::FrameConnection::connect(
      io, host, spec.coordinator_port,
      {.token = spec.rdzv_token,
       .job_id = spec.job_id,
       .tls = tls,
       .tls_name = spec.tls_name,
       .any_user = spec.any_user},
      kProbeLimit, [&answer](Result<std::shared_ptr<net::FrameConnection>> connection) {
        if (connection) {
          (*connection)->close();
          answer = Result<void>();
        } else {
          answer = Result<void>(connection.error());
        }
      });
  io.restart();
  while (!answer && io.run_one() > 0) {
  }
  io.restart();
  return answer.value_or(make_error(Errc::kAborted, "the probe did not run"));
}

// Hosts at the first free port of the step's. A port that is in use belongs to something else than
// this job.
Result<std::unique_ptr<server::Server>> host_in_step(asio::io_context& io, plan::JobPlan& plan,
                                                     server::ServerOptions options) {
  for (const int port : plan.step_ports) {
    options.port = port;
    auto server = server::Server::listen(io, options);
    if (server) {
      plan.spec.coordinator_port = port;
      return std::move(*server);
    }
    if (server.error().code != Errc::kExists) {
      return exit_error(kExitInvalidValue, "{}: the rendezvous cannot run here: {}",
                        plan.endpoint_flag, server.error().message);
    }
  }
  return exit_error(kExitPortInUse,
                    "{}: the ports for the rendezvous are in use on this node: {}; name a free "
                    "port with --master-port",
                    plan.endpoint_flag, fmt::join(plan.step_ports, ", "));
}

}  // namespace

Result<std::shared_ptr<const net::TlsContext>> load_tls(const config::JobSpec& spec) {
  if (!spec.tls.any()) return std::shared_ptr<const net::TlsContext>();
  auto tls = net::TlsContext::create(spec.tls);
  if (tls) return tls;
  return exit_error(tls.error().code == Errc::kNotFound ? kExitInternal : kExitInvalidValue, "{}",
                    tls.error().message);
}

server::ServerOptions options_of_job(const config::JobSpec& spec,
                                     std::shared_ptr<const net::TlsContext> tls) {
  server::ServerOptions options;
  options.fresh_store_each_round = true;
  options.token = spec.rdzv_token;
  options.tls = std::move(tls);
  options.any_user = spec.any_user;
  // By this page the nodes of a SLURM step, or of a meeting file, tell this daemon from another
  // job's.
  options.pages["/job"] = spec.job_id + "\n";
  return options;
}

Result<std::unique_ptr<server::Server>> host_rendezvous(asio::io_context& io, plan::JobPlan& plan) {
  const auto tls = load_tls(plan.spec);
  if (!tls) return tls.error();
  if (!plan.host) return std::unique_ptr<server::Server>();
  server::ServerOptions options = options_of_job(plan.spec, *tls);
  options.bind_address = plan.bind_address;
  options.port = plan.spec.coordinator_port;
  if (!plan.sealed_token.empty()) options.pages["/token"] = plan.sealed_token + "\n";
  if (!plan.step_ports.empty()) return host_in_step(io, plan, options);
  if (!plan.outside_address.empty() && probe(io, plan.spec, *tls, plan.outside_address)) {
    plan.spec.coordinator_host = plan.outside_address;
    return std::unique_ptr<server::Server>();
  }
  std::string last;
  for (int attempt = 0; attempt < kProbes; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kProbePause);
    auto server = server::Server::listen(io, options);
    if (server) {
      plan.spec.coordinator_port = (*server)->port();
      return std::move(*server);
    }
    if (server.error().code != Errc::kExists) {
      return exit_error(kExitInvalidValue, "{}: the rendezvous cannot run here: {}",
                        plan.endpoint_flag, server.error().message);
    }
    if (!plan.meeting_file.empty() && options.port != 0) {
      options.port = 0;  // The port was only the one of before.
      continue;
    }
    const auto answer = probe(io, plan.spec, *tls, plan.spec.coordinator_host);
    if (answer) return std::unique_ptr<server::Server>();
    if (answer.error().code == std::errc::permission_denied) {
      return exit_error(kExitRefused, "the rendezvous {}", answer.error().message);
    }
    // It accepts connections but speaks another protocol, so asking again is useless.
    if (answer.error().code == Errc::kProtocol) {
      return exit_error(kExitPortInUse, "{}: {}; `ss -ltnp 'sport = :{}'` shows it",
                        plan.endpoint_flag, answer.error().message, plan.spec.coordinator_port);
    }
    last = answer.error().message;
  }
  return exit_error(kExitPortInUse,
                    "{}: port {} is in use and no rendezvous answers there ({}); end the program "
                    "that uses it, or choose another port on all nodes",
                    plan.endpoint_flag, plan.spec.coordinator_port, last);
}

}  // namespace ddp::hosting
