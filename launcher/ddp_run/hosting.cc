#include "launcher/ddp_run/hosting.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "common/net/frame_connection.h"
#include "launcher/ddp_run/exit_error.h"

namespace ddp::run {
namespace {

constexpr std::chrono::milliseconds kProbeLimit{5'000};
// Somebody who has the port but takes no connection may be about to go, or to come.
constexpr int kProbes = 10;
constexpr std::chrono::milliseconds kProbePause{100};

// Success if a rendezvous answers at the endpoint.
Result<void> probe(asio::io_context& io, const config::JobSpec& spec) {
  std::optional<Result<void>> answer;
  net::FrameConnection::connect(
      io, spec.coordinator_host, spec.coordinator_port, kProbeLimit,
      [&answer](Result<std::shared_ptr<net::FrameConnection>> connection) {
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

// On the first of the step's ports that is free: whoever has another one, it is not this job.
Result<std::unique_ptr<server::Server>> host_in_step(asio::io_context& io, JobPlan& plan,
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
  return exit_error(
      kExitPortInUse,
      "{}: the ports for the rendezvous are in use on this node: {}; name one that is "
      "free with --master-port",
      plan.endpoint_flag, fmt::join(plan.step_ports, ", "));
}

}  // namespace

Result<std::unique_ptr<server::Server>> host_rendezvous(asio::io_context& io, JobPlan& plan) {
  if (!plan.host) return std::unique_ptr<server::Server>();
  server::ServerOptions options;
  options.bind_address = plan.bind_address;
  options.port = plan.spec.coordinator_port;
  options.fresh_store_each_round = true;
  // By which the other nodes of a SLURM step tell this daemon from another job's.
  options.pages["/job"] = plan.spec.job_id + "\n";
  if (!plan.step_ports.empty()) return host_in_step(io, plan, options);
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
    const auto answer = probe(io, plan.spec);
    if (answer) return std::unique_ptr<server::Server>();
    last = answer.error().message;
    // Connected, but it speaks something else: no use in asking again.
    if (answer.error().code == Errc::kProtocol) break;
  }
  return exit_error(kExitPortInUse,
                    "{}: port {} is in use and no rendezvous answers there ({}); end the program "
                    "that has it, or choose "
                    "another port on all nodes",
                    plan.endpoint_flag, plan.spec.coordinator_port, last);
}

}  // namespace ddp::run
