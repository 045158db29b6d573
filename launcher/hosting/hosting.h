#pragma once

#include <memory>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/net/tls.h"
#include "launcher/plan/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::hosting {

// Loads the files of --tls-cert, --tls-key and --tls-ca; null if they are not given. Errors are
// exit_error.
Result<std::shared_ptr<const net::TlsContext>> load_tls(const config::JobSpec& spec);

// What all daemons of a job have alike, whether they listen at its endpoint or stand by.
server::ServerOptions options_of_job(const config::JobSpec& spec,
                                     std::shared_ptr<const net::TlsContext> tls);

// Runs the rendezvous daemon in this process if the plan says so and none answers at the endpoint
// yet. Fills in the port to which the agent connects. Returns null if this ddp-run is a client like
// the others. Blocks until it is known what uses the port, about six seconds at most. Meanwhile it
// runs `io`, which must have no other work. Errors are exit_error: kExitPortInUse if another
// program has the port, kExitInvalidValue if the address cannot be bound or a certificate cannot be
// read, kExitRefused if the rendezvous there does not accept this job's token or certificates.
Result<std::unique_ptr<server::Server>> host_rendezvous(asio::io_context& io, plan::JobPlan& plan);

}  // namespace ddp::hosting
