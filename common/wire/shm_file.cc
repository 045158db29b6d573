#include "common/wire/shm_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace ddp::wire {

Result<UniqueFd> make_shm_file(int local_size, Round round, const LinkKey& link_key) {
  const std::size_t size = shm_bytes(local_size);
  const auto failed = [size](const char* step) {
    return make_error(Errc::kIo, "shared memory of {} bytes for the workers of this node: {}: {}",
                      size, step, std::generic_category().message(errno));
  };
  UniqueFd fd(::memfd_create("ddp-round", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return failed("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return failed("ftruncate");
  // A worker that shrank it would kill the others by SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed("sealing");
  void* page = ::mmap(nullptr, kShmHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return failed("mmap");
  auto* header = new (page) ShmHeader;
  header->size_bytes = size;
  header->local_size = local_size;
  header->round = round;
  header->link_key = link_key;
  ::munmap(page, kShmHeaderBytes);
  return fd;
}

}  // namespace ddp::wire
