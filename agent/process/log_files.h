#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"
#include "common/config/output_spec.h"
#include "common/wire/error_file.h"

namespace ddp::agent {

// Where a process's output is kept: <base>.out, .err and .error.json, with <log_dir>/<job_id>/
// before it. For a worker that was started in round k as rank R on node HOST the base is
// round_<k>/rank_<R>.<HOST>. The path holds the round, so a restart never touches files of an
// earlier round. It holds the global rank and the node's name, so nodes can share the folder.
//
// An existing file is from an earlier start of a job with the same id, because no start has the
// same round twice. It is kept beside the new one as <file>.1, the next as <file>.2.
//
// A process that takes part in several rounds has one set of files, those of its first round. The
// folders of later rounds have links to them, so round_<k>/rank_<R>.<HOST>.err exists for every k
// and R. (A link of an earlier start leads to the new file once there is one.)
struct LogFiles {
  UniqueFd out;
  UniqueFd err;
  std::string base;  // The path without its ending.
  int streams = 0;   // Which of out and err were opened (config::kStdout, kStderr).
  std::string path_of(int stream) const {
    return base + (stream == config::kStdout ? ".out" : ".err");
  }
  // The path of the file that tells most about a failure; empty if there is none.
  std::string main_path() const {
    if (streams == 0) return "";
    return path_of((streams & config::kStderr) != 0 ? config::kStderr : config::kStdout);
  }
  // Where the worker leaves its exception (TORCHELASTIC_ERROR_FILE). Absent before the worker
  // starts.
  std::string error_path() const { return base + ".error.json"; }
};

// Makes the folders and opens new files for `streams`. log_dir, job_id and host of `spec` say
// where. kIo names what could not be made.
Result<LogFiles> open_log_files(const config::JobSpec& spec, Round round, Rank rank,
                                int streams = config::kBothStreams);
// For a process that has no rank yet: <log_dir>/<job_id>/standby/<name>.
Result<LogFiles> open_standby_log_files(const std::string& log_dir, const std::string& job_id,
                                        const std::string& name,
                                        int streams = config::kBothStreams);
// Opens round_<k>/node_<group rank>/filtered_stdout.log, for lines of all workers of a node.
// Likewise a new file.
Result<UniqueFd> open_filtered_log(const std::string& log_dir, const std::string& job_id,
                                   Round round, int group_rank, int stream);
// Links round_<round>/rank_<rank>.<HOST>.{out,err} to those files of `base` that exist. A file of
// that name from an earlier start is kept as above.
Result<void> link_log_files(const config::JobSpec& spec, Round round, Rank rank,
                            const std::string& base);

// Appends to flight_recorder.jsonl in the folder of the round, which nodes may share. kIo names
// what could not be written.
Result<void> append_flight_log(const std::string& log_dir, const std::string& job_id, Round round,
                               const std::string& lines);

// The exception that a worker has left. The message is empty if there is none or it cannot be read.
// Very long texts are cut.
wire::ErrorFile read_error_file(const std::string& path);

}  // namespace ddp::agent
