#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::checkpoint {

inline constexpr std::string_view kLockName = ".lock";

// The right to write into a folder of checkpoints: a flock on DIR/.lock. It belongs to every
// process that has a copy of the descriptor; it is free when the last copy is closed, so a crash
// leaves nothing behind. The file stays, and its text (job, host, pid) is for messages only.
// Readers take no lock.
//
// The descriptor is that of a socket in which the open file waits. So closing a copy never waits
// for the disk, however slow that is.
//
// Movable; one thread at a time. A child that is forked without exec also has a copy.
class DirectoryLock {
 public:
  // If another job holds the lock, fails at once with kExists, which names the holder. If the same
  // job does (a previous rank 0 or its writer), waits at most `wait`, then fails with kTimeout. kIo
  // if the file cannot be made. Succeeds with a warning if the file system does not support locks.
  static Result<DirectoryLock> acquire(const std::string& directory, std::string_view job_id,
                                       std::chrono::milliseconds wait = std::chrono::seconds(30));

  DirectoryLock() = default;  // Holds nothing.

  bool held() const { return static_cast<bool>(fd_); }
  // To be sent or inherited: every process with a copy holds the lock. -1 if nothing is held.
  int fd() const { return fd_.get(); }
  // Not empty if the lock protects nothing.
  const std::string& warning() const { return warning_; }
  // Closes this copy.
  void release() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string warning_;
};

}  // namespace ddp::checkpoint
