#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/flight_ring.h"
#include "common/wire/shm_layout.h"

namespace ddp::agent {

// The memory that the workers of one node share in one round (shm_layout.h). The agent can raise
// its abort word. It has no name, so nothing is left of it when the agent has closed it and the
// last worker has ended.
class RoundMemory {
 public:
  // kIo with the size and errno's text.
  static Result<std::unique_ptr<RoundMemory>> create(int local_size, Round round,
                                                     const wire::LinkKey& link_key = {});
  ~RoundMemory();
  RoundMemory(const RoundMemory&) = delete;
  RoundMemory& operator=(const RoundMemory&) = delete;

  int fd() const { return fd_.get(); }
  const wire::ShmHeader& header() const { return *header_; }

  // The flight records of all workers that have made a group.
  std::vector<wire::Flight> flights() const;

  // Raises the abort word and wakes the workers that wait for it. Sets the reason unless another
  // was set before. Idempotent.
  void abort(std::string_view reason);

 private:
  RoundMemory(UniqueFd fd, wire::ShmHeader* header) : fd_(std::move(fd)), header_(header) {}

  UniqueFd fd_;
  wire::ShmHeader* header_;  // Only the first page is mapped here.
};

}  // namespace ddp::agent
