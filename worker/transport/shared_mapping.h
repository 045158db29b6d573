#pragma once

#include <cstddef>
#include <memory>

#include "common/base/result.h"
#include "common/wire/shm_layout.h"

namespace ddp::transport {

// The memory of one node in one round, mapped into this process as long as the object lives.
// Processes map the agent's memfd; threads of one process, and processes forked after its creation,
// may share what create() maps. Thread safe.
class SharedMapping {
 public:
  static Result<std::shared_ptr<SharedMapping>> create(int local_size, Round round);
  // Maps the memfd `fd` that the agent made; the caller keeps `fd`. kProtocol, kStale or kMismatch
  // if its header is not as expected; the message names the field.
  static Result<std::shared_ptr<SharedMapping>> attach(int fd, int local_size, Round round);

  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  int local_size() const { return header().local_size; }
  wire::ShmHeader& header() const { return *reinterpret_cast<wire::ShmHeader*>(memory_); }
  std::size_t region_bytes() const { return region_bytes_; }
  std::byte* region(int local) const {
    return memory_ + wire::kShmHeaderBytes + static_cast<std::size_t>(local) * region_bytes_;
  }

 private:
  SharedMapping(void* memory, std::size_t bytes, int local_size)
      : memory_(static_cast<std::byte*>(memory)),
        bytes_(bytes),
        region_bytes_((bytes - wire::kShmHeaderBytes) / static_cast<std::size_t>(local_size)) {}

  std::byte* memory_;
  std::size_t bytes_;
  std::size_t region_bytes_;
};

// Backs and maps the pages of the range, so that no page fault comes later.
void populate(std::byte* begin, std::size_t bytes);

}  // namespace ddp::transport
