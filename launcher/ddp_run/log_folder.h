#pragma once

#include <string>

#include "common/base/result.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// Makes the folder of --log-dir, or the one that -r and -t mean without it, and gives its absolute
// path; empty where there are to be no files. Made now (but for --dry-run), so that a wrong one is
// found before anything starts. The error is an exit_error with kExitInvalidValue.
Result<std::string> make_log_folder(const Options& options);

// Makes <log_dir>/latest a link to the job's folder there. Leaves a `latest` alone that is not a
// link; what cannot be linked is not worth a word.
void link_latest(const std::string& log_dir, const std::string& job_id);

}  // namespace ddp::run
