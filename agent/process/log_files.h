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
  std::string base;  // The path without its ending; empty: nothing is kept.
  int streams = 0;   // Which of out and err have a file (config::kStdout, kStderr).
  std::string path_of(int stream) const {
    return base + (stream == config::kStdout ? ".out" : ".err");
  }
  // The path of the file that tells most about a failure; empty if there is none.
  std::string main_path() const {
    if (streams == 0) return "";
    return path_of((streams & config::kStderr) != 0 ? config::kStderr : config::kStdout);
  }
  // The exception of a process that has ended. Absent before.
  std::string error_path() const { return base + ".error.json"; }
};

// The names. Nothing is opened.
LogFiles log_files_of(const config::JobSpec& spec, Round round, Rank rank, int streams);
// For a process that has no rank yet: <log_dir>/<job_id>/standby/<name>.
LogFiles standby_log_files(const config::JobSpec& spec, const std::string& name, int streams);
// round_<k>/node_<group rank>/filtered_stdout.log, for lines of all workers of a node.
std::string filtered_log_path(const config::JobSpec& spec, Round round, int group_rank, int stream);
// flight_recorder.jsonl in the folder of the round, which nodes may share.
std::string flight_log_path(const config::JobSpec& spec, Round round);

// What follows waits for the disk, so it is for FileWriter's thread. kIo names what could not be
// made.

// Opens a new file for appending, and makes the folders above it.
Result<UniqueFd> open_log_file(const std::string& path);
// What an earlier start has left is kept as above, also of streams that have no file now. Its
// exception is deleted.
Result<void> clear_old_log_files(const LogFiles& files);
// Links those files of `target` that exist to the names in `files`. What an earlier start has left
// there is kept as above.
Result<void> link_log_files(const LogFiles& files, const LogFiles& target);
// Appends in one write, because other nodes may append, too.
Result<void> append_to_log(const std::string& path, const std::string& lines);

// The bytes of the file in which a worker leaves its exception (TORCHELASTIC_ERROR_FILE), as far as
// they are wanted. Empty: there is none, or it cannot be read.
std::string read_error_file(const std::string& path);
// Cuts a failure's message to what the coordinator takes of one.
void cut_message(std::string& message);
// The message is empty if it cannot be understood. Very long texts are cut.
wire::ErrorFile error_in(const std::string& text);

}  // namespace ddp::agent
