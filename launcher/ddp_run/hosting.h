#pragma once

#include <memory>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/net/tls.h"
#include "launcher/ddp_run/job_plan.h"
#include "launcher/server/server.h"

namespace ddp::run {

// Loads what --tls-cert and its like name; null where they are not given. Errors are exit_error.
Result<std::shared_ptr<const net::TlsContext>> load_tls(const config::JobSpec& spec);

// Runs the rendezvous daemon in this process if the plan says so and nobody runs one at the
// endpoint yet. Fills in the port the agent is to connect to. Null: this ddp-run is a client like
// the others. Blocks for as long as it takes to find out who has the port, about six seconds at
// most; runs `io` meanwhile, which must have no other work. Errors are exit_error: kExitPortInUse
// if a stranger has the port, kExitInvalidValue if the address cannot be bound or a certificate not
// be read, kExitRefused if the rendezvous there does not know this job's token or certificates.
Result<std::unique_ptr<server::Server>> host_rendezvous(asio::io_context& io, JobPlan& plan);

}  // namespace ddp::run
