#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "launcher/ddp_run/job_plan.h"

namespace ddp::run {

// Where a job's rendezvous is, in a file that its nodes share.
struct MeetingPlace {
  std::string address;
  int port = 0;
  std::string host_name;
  std::string job_id;

  friend bool operator==(const MeetingPlace&, const MeetingPlace&) = default;
};

// The file's text: a line of its own kind, then a line for each job. kProtocol where it is not such
// a text; an empty one is.
std::string encode_meeting_file(const std::vector<MeetingPlace>& places);
Result<std::vector<MeetingPlace>> decode_meeting_file(std::string_view text);

// --rdzv-conf store_type=file: the nodes meet through a file instead of at an address that all of
// them are told. The first one to come hosts the rendezvous and writes down where. What an earlier
// job has left there counts only as long as a rendezvous answers that has a job of this name.
class MeetingFile {
 public:
  // Nothing where the plan has no such file. Else opens and locks it, and fills the coordinator in:
  // the one that it names, or this ddp-run, which is to host then. The lock lasts as long as the
  // object. Blocks while others have the lock, for the join timeout at most. Errors are exit_error.
  static Result<MeetingFile> enter(JobPlan& plan);

  // The rendezvous runs here, where `plan` says.
  Result<void> announce(const JobPlan& plan);

 private:
  UniqueFd fd_;
  std::vector<MeetingPlace> others_;
};

}  // namespace ddp::run
