#include "worker/transport/shared_mapping.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "worker/transport/segment_layout.h"

namespace ddp::transport {
namespace {

constexpr std::uintptr_t kPage = 4096;

std::string error_text(int number) { return std::generic_category().message(number); }

// Zero bytes are the initial state of every object in it, which is what both an anonymous mapping
// and a fresh memfd hold.
Result<void*> map_shared(int fd, std::size_t bytes, int flags) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | flags, fd, 0);
  if (memory == MAP_FAILED) {
    return make_error(Errc::kIo, "cannot map {} bytes of shared memory: {}", bytes,
                      error_text(errno));
  }
  return memory;
}

Result<void> check_header(const wire::ShmHeader& header, std::size_t size, int local_size,
                          Round round) {
  if (header.magic != wire::kShmMagic || header.version != wire::kShmVersion) {
    return make_error(Errc::kProtocol,
                      "DDP_SHM_FD: magic {:#x} version {}, expected {:#x} version {}; agent and "
                      "worker must come from the same build",
                      header.magic, header.version, wire::kShmMagic, wire::kShmVersion);
  }
  if (header.round != round) {
    return make_error(Errc::kStale, "DDP_SHM_FD belongs to round {}, but this worker to round {}",
                      header.round, round);
  }
  if (header.local_size != local_size) {
    return make_error(Errc::kMismatch,
                      "DDP_SHM_FD is for {} local workers, but LOCAL_WORLD_SIZE is {}",
                      header.local_size, local_size);
  }
  const std::size_t needed =
      wire::kShmHeaderBytes + static_cast<std::size_t>(local_size) * sizeof(RegionHead);
  if (size < needed) {
    return make_error(Errc::kProtocol, "DDP_SHM_FD holds {} bytes, but {} local workers need {}",
                      size, local_size, needed);
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<SharedMapping>> SharedMapping::create(int local_size, Round round) {
  const std::size_t bytes = wire::shm_bytes(local_size);
  auto memory = map_shared(-1, bytes, MAP_ANONYMOUS);
  if (!memory) return memory.error();
  auto* header = new (*memory) wire::ShmHeader;
  header->size_bytes = bytes;
  header->local_size = local_size;
  header->round = round;
  return std::shared_ptr<SharedMapping>(new SharedMapping(*memory, bytes, local_size));
}

Result<std::shared_ptr<SharedMapping>> SharedMapping::attach(int fd, int local_size, Round round) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return make_error(Errc::kIo, "DDP_SHM_FD={}: {}", fd, error_text(errno));
  }
  const auto size = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  if (size < wire::kShmHeaderBytes) {
    return make_error(Errc::kProtocol,
                      "DDP_SHM_FD={} holds {} bytes, but its header alone needs {}", fd, size,
                      wire::kShmHeaderBytes);
  }
  auto page = map_shared(fd, wire::kShmHeaderBytes, 0);
  if (!page) return page.error();
  auto checked = check_header(*static_cast<const wire::ShmHeader*>(*page), size, local_size, round);
  ::munmap(*page, wire::kShmHeaderBytes);
  if (!checked) return checked.error();

  auto memory = map_shared(fd, size, 0);
  if (!memory) return memory.error();
  return std::shared_ptr<SharedMapping>(new SharedMapping(*memory, size, local_size));
}

SharedMapping::~SharedMapping() { ::munmap(memory_, bytes_); }

void populate(std::byte* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(begin) + bytes;
  if (bytes == 0) return;
#if defined(MADV_POPULATE_WRITE)
  if (::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE) == 0) return;
#endif
  // Before Linux 5.14: adding nothing writes to the page and changes no byte that another rank
  // writes.
  for (auto page = first; page < end; page += kPage) {
    auto* word = reinterpret_cast<std::uint32_t*>(page);
    std::atomic_ref<std::uint32_t>(*word).fetch_add(0, std::memory_order_relaxed);
  }
}

}  // namespace ddp::transport
