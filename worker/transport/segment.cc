#include "worker/transport/segment.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "common/base/clock.h"
#include "worker/transport/futex.h"

namespace ddp {
namespace {

std::string error_text(int number) { return std::generic_category().message(number); }

// Reads of flags go through at<>(), which needs memory that holds such objects already: zero bytes
// are their initial state, which is what both an anonymous mapping and a fresh memfd hold.
Result<void*> map_shared(int fd, std::size_t bytes, int flags) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE | flags, fd, 0);
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
                      "worker must be of the "
                      "same build",
                      header.magic, header.version, wire::kShmMagic, wire::kShmVersion);
  }
  if (header.round != round) {
    return make_error(Errc::kStale, "DDP_SHM_FD belongs to round {}, this worker to round {}",
                      header.round, round);
  }
  if (header.local_size != local_size) {
    return make_error(Errc::kMismatch, "DDP_SHM_FD is for {} local workers, LOCAL_WORLD_SIZE is {}",
                      header.local_size, local_size);
  }
  if (size < segment_bytes(local_size)) {
    return make_error(Errc::kProtocol, "DDP_SHM_FD holds {} bytes, {} local workers need {}", size,
                      local_size, segment_bytes(local_size));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Segment>> Segment::create(int local_size, Round round) {
  const std::size_t bytes = segment_bytes(local_size);
  auto memory = map_shared(-1, bytes, MAP_ANONYMOUS);
  if (!memory) return memory.error();
  auto* header = new (*memory) wire::ShmHeader;
  header->size_bytes = bytes;
  header->local_size = local_size;
  header->round = round;
  return std::shared_ptr<Segment>(new Segment(*memory, bytes, local_size));
}

Result<std::shared_ptr<Segment>> Segment::attach(int fd, int local_size, Round round) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return make_error(Errc::kIo, "DDP_SHM_FD={}: {}", fd, error_text(errno));
  }
  const auto size = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  if (size < wire::kShmHeaderBytes) {
    return make_error(Errc::kProtocol, "DDP_SHM_FD={} holds {} bytes, its header alone takes {}",
                      fd, size, wire::kShmHeaderBytes);
  }
  auto page = map_shared(fd, wire::kShmHeaderBytes, 0);
  if (!page) return page.error();
  auto checked = check_header(*static_cast<const wire::ShmHeader*>(*page), size, local_size, round);
  ::munmap(*page, wire::kShmHeaderBytes);
  if (!checked) return checked.error();

  const std::size_t bytes = segment_bytes(local_size);
  auto memory = map_shared(fd, bytes, 0);
  if (!memory) return memory.error();
  return std::shared_ptr<Segment>(new Segment(*memory, bytes, local_size));
}

Segment::~Segment() { ::munmap(memory_, bytes_); }

void Segment::publish(int local, Flag flag, std::uint32_t value) {
  line(local, flag).store(value, std::memory_order_seq_cst);
  for (int peer = 0; peer < local_size_; ++peer) {
    if (peer == local) continue;
    Doorbell& door = doorbell(peer);
    if (door.sleeping.load(std::memory_order_seq_cst) == 0) continue;
    door.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(door.bell);
  }
}

void Segment::ring_all() {
  for (int peer = 0; peer < local_size_; ++peer) {
    doorbell(peer).bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(doorbell(peer).bell);
  }
}

void Segment::raise_abort(const Failure& cause) {
  wire::ShmHeader& shared = header();
  std::uint32_t unclaimed = 0;
  if (shared.abort_claim.compare_exchange_strong(unclaimed, 1)) {
    shared.abort_rank = cause.suspect;
    const std::size_t length = std::min(cause.text.size(), sizeof(shared.abort_reason) - 1);
    std::memcpy(shared.abort_reason, cause.text.data(), length);
    shared.abort_reason[length] = '\0';
    const bool ours = cause.code.category() == make_error_code(Errc::kAborted).category();
    segment_control().abort_code.store(ours ? cause.code.value() : 0, std::memory_order_relaxed);
  } else {
    // Another rank is writing its cause. It may die before it is through, which must not leave the
    // others waiting.
    const TimePoint limit = Clock::now() + Duration(100);
    while (!aborted() && Clock::now() < limit) std::this_thread::yield();
  }
  std::uint32_t alive = 0;
  shared.abort.compare_exchange_strong(alive, 1);
  ring_all();
}

Failure Segment::abort_cause() const {
  const wire::ShmHeader& shared = header();
  const int code = segment_control().abort_code.load(std::memory_order_relaxed);
  Failure cause;
  cause.told = true;
  cause.code =
      code == 0 ? make_error_code(Errc::kAborted) : make_error_code(static_cast<Errc>(code));
  cause.suspect = shared.abort_rank;
  cause.text.assign(shared.abort_reason,
                    ::strnlen(shared.abort_reason, sizeof(shared.abort_reason)));
  if (cause.text.empty()) cause.text = "the round was aborted";
  return cause;
}

}  // namespace ddp
