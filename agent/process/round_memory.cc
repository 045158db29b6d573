#include "agent/process/round_memory.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "common/wire/shm_file.h"

namespace ddp::agent {

Result<std::unique_ptr<RoundMemory>> RoundMemory::create(int local_size, Round round,
                                                         const wire::LinkKey& link_key) {
  Result<UniqueFd> fd = wire::make_shm_file(local_size, round, link_key);
  if (!fd) return fd.error();
  void* page =
      ::mmap(nullptr, wire::kShmHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (page == MAP_FAILED) {
    return make_error(Errc::kIo, "shared memory for the workers of this node: mmap: {}",
                      std::generic_category().message(errno));
  }
  return std::unique_ptr<RoundMemory>(
      new RoundMemory(std::move(*fd), static_cast<wire::ShmHeader*>(page)));
}

RoundMemory::~RoundMemory() { ::munmap(header_, wire::kShmHeaderBytes); }

void RoundMemory::abort(std::string_view reason) {
  std::uint32_t unclaimed = 0;
  if (header_->abort_claim.compare_exchange_strong(unclaimed, 1)) {
    const std::size_t size = std::min(reason.size(), sizeof(header_->abort_reason) - 1);
    std::memcpy(header_->abort_reason, reason.data(), size);
    header_->abort_reason[size] = '\0';
  }
  // A worker that has claimed the abort may have died before it raised the word, so raise it in any
  // case. Its reason may then be cut short, but it ends with NUL, because the last byte is never
  // written.
  header_->abort.store(1, std::memory_order_release);
  ::syscall(SYS_futex, &header_->abort, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

MappedPart::~MappedPart() {
  if (bytes_ != nullptr) ::munmap(bytes_, size_);
}

MappedPart RoundMemory::map(int local, std::size_t offset, std::size_t size) const {
  const std::size_t region =
      wire::kShmHeaderBytes + static_cast<std::size_t>(local) * wire::kShmBytesPerWorker;
  void* bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(),
                       static_cast<off_t>(region + offset));
  if (bytes == MAP_FAILED) return {};
  return {static_cast<std::byte*>(bytes), size};
}

std::vector<wire::Flight> RoundMemory::flights() const {
  std::vector<wire::Flight> flights;
  for (int local = 0; local < header_->local_size; ++local) {
    const MappedPart part = map(local, 0, wire::kFlightBytes);
    if (!part) continue;
    if (auto flight = wire::read_flight(part.bytes())) flights.push_back(std::move(*flight));
  }
  return flights;
}

}  // namespace ddp::agent
