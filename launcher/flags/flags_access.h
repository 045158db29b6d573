#pragma once

#include "common/base/result.h"
#include "common/base/secret.h"
#include "launcher/flags/flags.h"

namespace ddp::flags {

// The job's secret, from --rdzv-token-file or DDP_RDZV_TOKEN; empty if neither is given. Errors are
// exit_error and never contain the secret.
Result<Secret> job_token(const Options& options);

}  // namespace ddp::flags
