#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/config/rank_set.h"

// Where the output of a job's workers goes: --redirects, --tee and related flags.
namespace ddp::config {

// Output streams of a worker, numbered as in torchrun. A set of them is the sum.
inline constexpr int kStdout = 1;
inline constexpr int kStderr = 2;
inline constexpr int kBothStreams = 3;

// Streams by rank: the value of --redirects or --tee.
struct StreamMap {
  struct Entry {
    RankSet ranks;
    int streams = 0;
    bool global = false;  // `ranks` are those of the job, not local ones of each node.

    friend bool operator==(const Entry&, const Entry&) = default;
  };
  int others = 0;  // Streams of ranks that no entry names.
  std::vector<Entry> entries;

  // The last entry that names the worker counts.
  int of(Rank rank, int local_rank) const;
  // The streams that any rank has.
  int any() const;
  bool none() const { return any() == 0; }

  friend bool operator==(const StreamMap&, const StreamMap&) = default;
};

// "3" for all workers, or "0:1,8-15:3": local ranks and ranges of them, each with its value. After
// an @, as in "@8-15:3", they are global ranks. Workers that are not named have 0. The message of
// kInvalidArgument says what would be right, but does not name the flag.
Result<StreamMap> parse_stream_map(std::string_view text);

// "a,b": the items; ",," is a comma in an item. Empty items are dropped.
std::vector<std::string> split_filters(std::string_view text);

struct OutputSpec {
  StreamMap redirects;  // To the log file and not to the console.
  StreamMap tee;        // To the log file and to the console; overrides redirects.
  // The console shows only workers whose local rank is in local_ranks or whose rank is in ranks.
  // Both empty: all.
  RankSet local_ranks;
  RankSet ranks;
  // A line that contains one of these texts is also written to a file of the node.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  bool has_prefix = false;  // Whether `prefix` replaces the default prefix.
  std::string prefix;       // A template: ${rank} and others.
  bool status_line = false;
  // The console is a ddp-run that waits for whole lines. So one worker's unfinished lines, too, are
  // passed on in pieces.
  bool whole_lines = false;

  friend bool operator==(const OutputSpec&, const OutputSpec&) = default;
};

// Sets of streams.
struct StreamPlaces {
  int file = 0;
  int console = 0;
};

// Where the streams of one worker go. With a log folder and neither redirects nor tee, everything
// goes to files and to the console. Without a log folder nothing goes to files, and redirected
// streams are dropped.
StreamPlaces places_of(const OutputSpec& spec, bool has_log_dir, Rank rank, int local_rank);

// The folder of a job in the log folder: its id as one path component.
std::string job_folder_name(std::string job_id);

}  // namespace ddp::config
