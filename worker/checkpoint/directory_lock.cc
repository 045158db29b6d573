#include "worker/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/host_name.h"
#include "common/base/json_text.h"
#include "common/process/descriptor_passing.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::checkpoint {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): durations.
using nlohmann::json;

constexpr auto kPoll = 20ms;
// How long a new holder may take to write its name; until then the file has the previous one.
constexpr auto kNaming = 200ms;

struct Holder {
  std::string job_id;
  std::string text;  // For people.
};

Result<void> write_holder(int fd, const std::string& path, std::string_view job_id) {
  const json holder = {{"job", job_id}, {"host", host_name()}, {"pid", ::getpid()}};
  const std::string text = dump_json(holder) + "\n";
  if (::ftruncate(fd, 0) < 0 ||
      ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return make_error(Errc::kIo, "cannot write {}: {}", path,
                      std::generic_category().message(errno));
  }
  return {};
}

Holder read_holder(int fd) {
  char text[4096];
  const ssize_t size = ::pread(fd, text, sizeof text, 0);
  const json holder =
      parse_json_or_discard({text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))});
  try {
    return {holder.at("job").get<std::string>(),
            fmt::format("job {}, process {} on {}", holder.at("job").get<std::string>(),
                        holder.at("pid").get<long>(), holder.at("host").get<std::string>())};
  } catch (const json::exception&) {
    return {"", "an unknown process"};
  }
}

// Whoever can open the file can lock it, and hold up the job. So only those may read it who may
// write it. As far as the file system and its owner let us.
void exclude_readers(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return;
  const mode_t can_write = info.st_mode & 0222;
  const mode_t wanted = can_write | can_write << 1;
  if ((info.st_mode & 0666) != wanted) (void)::fchmod(fd, wanted);
}

// Puts the open file into the queue of a socket, and returns the socket. While a copy of the socket
// is open, the kernel keeps the file open, and with it the lock.
//
// A descriptor of the file itself would be dangerous to pass around: each close of a copy is a
// FLUSH to a FUSE or NFS server, and waits for it. Every process that is started by a holder
// inherits a copy, which exec closes. So a holder that starts a process would stand still with the
// disk. Dropping a file from a queue flushes nothing.
Result<UniqueFd> put_into_socket(const UniqueFd& file) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
    const UniqueFd sender(ends[0]);
    UniqueFd receiver(ends[1]);
    if (send_with_descriptors(sender.get(), "L", {&file, 1}) == 1) return receiver;
  }
  return make_error(Errc::kIo, "cannot pass the lock of a folder of checkpoints on: {}",
                    std::generic_category().message(errno));
}

// 0: locked; else errno.
int try_lock(int fd) {
  while (::flock(fd, LOCK_EX | LOCK_NB) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Result<DirectoryLock> DirectoryLock::acquire(const std::string& directory, std::string_view job_id,
                                             std::chrono::milliseconds wait) {
  const std::string path = join_path(directory, kLockName);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd) {
    return make_error(Errc::kIo, "cannot open {}: {}", path,
                      std::generic_category().message(errno));
  }
  exclude_readers(fd.get());
  DirectoryLock lock;
  const TimePoint begin = Clock::now();
  while (const int failure = try_lock(fd.get())) {
    if (failure != EWOULDBLOCK) {
      lock.warning_ =
          fmt::format("cannot lock {}: {}; make sure that no other job writes to this folder", path,
                      std::generic_category().message(failure));
      break;
    }
    const Holder holder = read_holder(fd.get());
    const auto waited = Clock::now() - begin;
    if (holder.job_id != job_id && waited >= std::min<Clock::duration>(kNaming, wait)) {
      return make_error(Errc::kExists,
                        "{} is in use by {}; give each job its own folder, or end that job",
                        directory, holder.text);
    }
    if (holder.job_id == job_id && waited >= wait) {
      return make_error(Errc::kTimeout,
                        "{} is still in use by {}, which belongs to this same job, after {} ms; it "
                        "may be writing its last checkpoint, or hang",
                        directory, holder.text, wait.count());
    }
    std::this_thread::sleep_for(kPoll);
  }
  if (lock.warning_.empty()) {
    if (auto written = write_holder(fd.get(), path, job_id); !written) return written.error();
  }
  auto holder = put_into_socket(fd);
  if (!holder) return holder.error();
  lock.fd_ = std::move(*holder);
  return lock;
}

}  // namespace ddp::checkpoint
