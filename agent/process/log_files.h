#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/error_file.h"

namespace ddp::agent {

// Where a process's output is kept: <base>.out, .err and .error.json, with <log_dir>/<job_id>/
// before it. For a worker that was started in round k as rank R the base is round_<k>/rank_<R>. The
// path has the round, so a restart never touches what an earlier round has written, and the global
// rank, so nodes can share the folder.
//
// A process that takes part in several rounds has one set of files, those of its start. The folders
// of later rounds have links to them, so round_<k>/rank_<R>.err is there for every k and R.
struct LogFiles {
  UniqueFd out;
  UniqueFd err;
  std::string base;  // The path without its ending.
  std::string err_path() const { return base + ".err"; }
  // Where the worker leaves its exception (TORCHELASTIC_ERROR_FILE); not there before the worker
  // starts.
  std::string error_path() const { return base + ".error.json"; }
};

// Makes the folders and opens the files for appending. kIo names what could not be made.
Result<LogFiles> open_log_files(const std::string& log_dir, const std::string& job_id, Round round,
                                Rank rank);
// Of a process that has no rank yet: <log_dir>/<job_id>/standby/<name>.
Result<LogFiles> open_standby_log_files(const std::string& log_dir, const std::string& job_id,
                                        const std::string& name);
// Links round_<round>/rank_<rank>.{out,err} to the files of `base`. A file of that name that an
// earlier job of the same id has left stays as it is.
Result<void> link_log_files(const std::string& log_dir, const std::string& job_id, Round round,
                            Rank rank, const std::string& base);

// Appends to flight_recorder.jsonl in the folder of the round, which nodes may share. kIo names
// what could not be written.
Result<void> append_flight_log(const std::string& log_dir, const std::string& job_id, Round round,
                               const std::string& lines);

// The exception that a worker has left; an empty message if there is none or it cannot be read.
wire::ErrorFile read_error_file(const std::string& path);

}  // namespace ddp::agent
