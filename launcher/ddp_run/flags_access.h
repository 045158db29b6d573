#pragma once

#include "common/base/result.h"
#include "common/base/secret.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// The job's secret, from --rdzv-token-file or DDP_RDZV_TOKEN; empty: none was asked for. Errors are
// exit_error; none of them shows it.
Result<Secret> job_token(const Options& options);

}  // namespace ddp::run
