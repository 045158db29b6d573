#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::runtime {

// Gives a descriptor to other processes of this user on this machine, over a Unix socket. Other
// users may find its name in /proc/net/unix, but are not served. One thread.
class MemoryHandout {
 public:
  // kIo with errno's text.
  static Result<MemoryHandout> open(UniqueFd memory);

  // For take_memory().
  const std::string& name() const { return name_; }
  // Serves whoever has come, and waits at most `limit` for the next one. Returns how many have been
  // served since the last call.
  int serve(Duration limit);

 private:
  MemoryHandout(UniqueFd memory, UniqueFd socket, std::string name)
      : memory_(std::move(memory)), socket_(std::move(socket)), name_(std::move(name)) {}

  UniqueFd memory_;
  UniqueFd socket_;
  std::string name_;
};

// The other end. kIo, kTimeout or kProtocol; the message begins with what failed.
Result<UniqueFd> take_memory(const std::string& name, TimePoint deadline);

}  // namespace ddp::runtime
