#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/tensorboard/event.h"

namespace ddp::tensorboard {

// The scalars of one training, in a file that TensorBoard shows: DIR/events.out.tfevents.ddp-run.
// A training that is resumed opens the same file again and names the step that it resumes from:
// what the file has of later steps is dropped, and comes again. So each step is there once, and
// none is missing, however often and whenever the training was interrupted. Every record is written
// by one system call: after SIGKILL it is there or not. (After a power cut, the file may end before
// the newest checkpoint.)
//
// A TensorBoard that reads while a training is resumed goes on with the new records, unless steps
// were not written in order.
//
// One thread, and one process at a time.
class EventFile {
 public:
  static constexpr std::int64_t kKeepAll = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kKeepNone = -1;  // The training begins: the file is emptied.

  // Makes the folder and the file if they are not there. last_step: the step after which the
  // training goes on, or one of the above. kIo with the path. kCorrupt if the file is no event
  // file; it is left as it is.
  static Result<EventFile> open(const std::string& folder, std::int64_t last_step);

  // What the file had of last_step when it was opened is not written again: a training that is
  // resumed may repeat what followed the step. kIo with the path; what was written before stays,
  // and nothing of this record, so that a later one may be added once the disk has room.
  Result<void> add(std::int64_t step, std::span<const Scalar> scalars);
  // For a curve whose points become known only after their steps, in the order of the steps, and
  // then perhaps again by the next process. Does nothing if the curve has this step or a later one.
  // All points of the curve must come this way.
  Result<void> add_late(std::int64_t step, const Scalar& scalar);

 private:
  EventFile(std::string path, UniqueFd file, std::int64_t last_step,
            std::map<std::string, std::int64_t> newest)
      : path_(std::move(path)),
        file_(std::move(file)),
        last_step_(last_step),
        newest_(std::move(newest)) {}
  Result<void> append(std::string_view event);

  std::string path_;
  UniqueFd file_;
  std::int64_t last_step_;
  // By tag: the newest step that the file had when it was opened, and that add_late() has added.
  std::map<std::string, std::int64_t> newest_;
};

}  // namespace ddp::tensorboard
