#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::agent {

// Where a worker's output is kept: <log_dir>/<job_id>/round_<k>/rank_<R>.{out,err,error.json}. The
// path has the round, so a restart never touches what an earlier round has written, and the global
// rank, so nodes can share the folder.
struct LogFiles {
  UniqueFd out;
  UniqueFd err;
  std::string err_path;
  // Where the worker leaves its exception (TORCHELASTIC_ERROR_FILE); not there before the worker
  // starts.
  std::string error_path;
};

// Makes the folders and opens the files for appending. kIo names what could not be made.
Result<LogFiles> open_log_files(const std::string& log_dir, const std::string& job_id, Round round,
                                Rank rank);

// Appends to flight_recorder.jsonl in the folder of the round, which nodes may share. kIo names
// what could not be written.
Result<void> append_flight_log(const std::string& log_dir, const std::string& job_id, Round round,
                               const std::string& lines);

// The text in an error file as torch's @record and ours write it; empty if there is none or it
// cannot be read.
std::string read_error_file(const std::string& path);

}  // namespace ddp::agent
