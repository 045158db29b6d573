#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/flight_ring.h"
#include "common/wire/shm_layout.h"

namespace ddp::agent {

// A part of that memory, mapped until the object is gone; empty if that was refused.
class MappedPart {
 public:
  MappedPart() = default;
  MappedPart(std::byte* bytes, std::size_t size) : bytes_(bytes), size_(size) {}
  MappedPart(MappedPart&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(other.size_) {}
  MappedPart& operator=(MappedPart&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedPart();

  std::byte* bytes() const { return bytes_; }
  explicit operator bool() const { return bytes_ != nullptr; }

 private:
  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

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

  // `offset`, in the region of this local rank, and `size` are whole pages.
  MappedPart map(int local, std::size_t offset, std::size_t size) const;
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
