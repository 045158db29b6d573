#include "launcher/check/folder_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "common/base/random_hex.h"
#include "common/base/unique_fd.h"
#include "common/process/write_file.h"

namespace ddp::check {
namespace {

constexpr std::size_t kWriteBytes = 1u << 20;
constexpr int kWriteBytess = 64;
constexpr Duration kWriting{2'000};
constexpr int kSyncs = 3;

double ms_since(TimePoint begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::string failed(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

// A file without a name, so that nothing is left if this process is killed in the middle.
class ProbeFile {
 public:
  explicit ProbeFile(const std::string& folder) {
    const std::string path = fmt::format("{}/.ddp-run-check-{}", folder, random_hex(8));
    fd_.reset(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    if (fd_) ::unlink(path.c_str());
  }
  int fd() const { return fd_.get(); }
  bool is_open() const { return static_cast<bool>(fd_); }

 private:
  UniqueFd fd_;
};

// As much as fits into the time; the bytes cannot be compressed to nothing.
std::string write_much(int fd, double& mb_per_s) {
  std::string chunk(kWriteBytes, '\0');
  std::uint64_t state = 0x9E3779B97F4A7C15;
  for (char& byte : chunk) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(state >> 56);
  }
  const TimePoint begin = Clock::now();
  std::size_t written = 0;
  for (int i = 0; i < kWriteBytess && Clock::now() - begin < kWriting; ++i) {
    std::string_view rest = chunk;
    errno = write_all(fd, rest);
    if (errno != 0) return failed("cannot be written");
    written += kWriteBytes;
  }
  if (::fsync(fd) != 0) return failed("cannot be forced to the disk");
  mb_per_s = static_cast<double>(written) / 1e3 / ms_since(begin);
  return "";
}

// How long a small file takes to the disk, as the manifest of a checkpoint.
std::string sync_often(const std::string& folder, double& longest_ms) {
  for (int i = 0; i < kSyncs; ++i) {
    const ProbeFile file(folder);
    if (!file.is_open()) return failed("no file can be made");
    if (::write(file.fd(), "check", 5) != 5) return failed("cannot be written");
    const TimePoint begin = Clock::now();
    if (::fsync(file.fd()) != 0) return failed("cannot be forced to the disk");
    longest_ms = std::max(longest_ms, ms_since(begin));
  }
  return "";
}

FolderFacts look_at(const std::string& path) {
  FolderFacts facts;
  facts.path = path;
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) {
    facts.error = std::strerror(errno);
    return facts;
  }
  facts.free_bytes = static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
  if (status.f_files > 0) facts.free_inodes = static_cast<std::int64_t>(status.f_favail);
  facts.error = sync_often(path, facts.sync_ms);
  if (!facts.error.empty()) return facts;
  const ProbeFile file(path);
  facts.error =
      file.is_open() ? write_much(file.fd(), facts.mb_per_s) : failed("no file can be made");
  return facts;
}

// Everything from the pipe until its end; what is there at the deadline otherwise.
std::string read_until(int fd, TimePoint deadline) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::duration_cast<Duration>(deadline - Clock::now()).count();
    pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waits, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return text;
    char buffer[4'096];
    const ssize_t count = ::read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

FolderFacts probe_folder(const std::string& path, Duration limit) {
  FolderFacts failed_facts;
  failed_facts.path = path;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    failed_facts.error = failed("no pipe can be made");
    return failed_facts;
  }
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) {
    failed_facts.error = failed("no process can be started");
    return failed_facts;
  }
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);  // A limit on the size of files is an error like others.
    const std::string text = encode(look_at(path));
    const ssize_t written = ::write(writing.get(), text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  writing.reset();
  const TimePoint deadline = Clock::now() + limit;
  const std::string text = read_until(reading.get(), deadline);
  const bool in_time = Clock::now() < deadline;
  ::kill(child, SIGKILL);
  auto facts = decode_folder_facts(text);
  if (facts) {
    ::waitpid(child, nullptr, 0);
    return std::move(*facts);
  }
  // One that hangs in the kernel does not even die.
  ::waitpid(child, nullptr, WNOHANG);
  failed_facts.error =
      in_time ? "the process that looked at it was ended"
              : fmt::format("its disk or server has not answered for {} s", limit.count() / 1'000);
  return failed_facts;
}

}  // namespace ddp::check
