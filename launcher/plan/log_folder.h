#pragma once

#include <string>

#include "common/base/result.h"
#include "launcher/flags/flags.h"

namespace ddp::plan {

// Makes the folder of --log-dir, or the default folder of -r and -t, and gives its absolute path;
// empty if there are no log files. The folder is made now (except with --dry-run), so that a wrong
// one is found before anything starts. The error is an exit_error with kExitInvalidValue.
Result<std::string> make_log_folder(const flags::Options& options);

// Makes <log_dir>/latest a link to the job's folder there. A `latest` that is not a link stays as
// it is. Errors are ignored.
void link_latest(const std::string& log_dir, const std::string& job_id);

}  // namespace ddp::plan
