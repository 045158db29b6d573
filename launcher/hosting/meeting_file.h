#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "launcher/plan/job_plan.h"

namespace ddp::hosting {

// One entry of the meeting file: where a job's rendezvous is.
struct MeetingPlace {
  std::string address;
  int port = 0;
  std::string host_name;
  std::string job_id;

  friend bool operator==(const MeetingPlace&, const MeetingPlace&) = default;
};

// The file's text: a heading that identifies the format, then one line for each job. Decoding gives
// kProtocol for any other text, except an empty one.
std::string encode_meeting_file(const std::vector<MeetingPlace>& places);
Result<std::vector<MeetingPlace>> decode_meeting_file(std::string_view text);

// --rdzv-conf store_type=file: the nodes meet through a shared file instead of an address that all
// of them know. The first node to come hosts the rendezvous and writes its address into the file,
// which is made so that no other user can open it. An entry counts only if a rendezvous answers
// there that has a job of this name. A dead entry with this node's own address may be that of a
// ddp-run that was lost while its job goes on: this one hosts at the same port, where the others
// look for it and tell it who coordinates the job now.
class MeetingFile {
 public:
  // Does nothing if the plan has no such file. Otherwise opens and locks it and fills in the plan's
  // coordinator: the one in the file, or else this ddp-run, which must then host. The lock lasts as
  // long as the object. Blocks while another process has the lock, at most for the join timeout.
  // Errors are exit_error.
  static Result<MeetingFile> enter(plan::JobPlan& plan);

  // Writes into the file that the rendezvous runs here, at the address in `plan`.
  Result<void> announce(const plan::JobPlan& plan);

 private:
  UniqueFd fd_;
  std::vector<MeetingPlace> others_;
};

// Writes into the file `path` that the job's rendezvous is at this place from now on. Returns at
// once: a thread waits until no other process has the file locked, and for the disk. What keeps it
// from writing is logged.
void move_meeting(const std::string& path, const MeetingPlace& place);

}  // namespace ddp::hosting
