#include "launcher/node/scratch_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/config/scratch_folder.h"

namespace ddp::node {
namespace {

namespace fs = std::filesystem;

// A machine may run a thousand nodes, and each of them comes here.
constexpr int kLooksMax = 64;
constexpr int kAttempts = 20;
constexpr std::chrono::milliseconds kPause{5};

// Exactly as scratch_folder() names those of ddp-run's node ids: users have other folders there,
// such as ddp-run-logs.
bool is_scratch(std::string_view name) {
  constexpr std::string_view kPrefix = "ddp-run-";
  constexpr std::size_t kIdDigits = 16;
  return name.size() == kPrefix.size() + kIdDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

// A descriptor that holds the lock of this user's folder. Empty, with an errno, if there is none:
// EWOULDBLOCK if another process holds it, ENOENT if the folder has just been removed.
UniqueFd lock(const std::string& folder) {
  errno = 0;
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat opened {};
  struct stat named {};
  if (!fd || ::fstat(fd.get(), &opened) != 0 || opened.st_uid != ::geteuid()) return {};
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return {};
  // Whoever held the lock may have removed the folder, and somebody may have made another.
  const bool is_there = ::lstat(folder.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
                        named.st_dev == opened.st_dev;
  if (is_there) return fd;
  errno = ENOENT;
  return {};
}

}  // namespace

UniqueFd claim_scratch_folder(const NodeId& node_id) {
  const fs::path own = config::scratch_folder(node_id);
  UniqueFd claim;
  // Another ddp-run may take the folder for abandoned before it is locked, and remove it.
  for (int attempt = 0; !claim; ++attempt) {
    if (attempt == kAttempts || !config::make_scratch_folder(own.string())) return {};
    claim = lock(own.string());
    if (claim) break;
    if (errno != EWOULDBLOCK && errno != ENOENT) return {};
    std::this_thread::sleep_for(kPause);
  }
  std::error_code error;
  int looks = 0;
  for (fs::directory_iterator entry(own.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_scratch(name) || entry->path() == own) continue;
    if (++looks > kLooksMax) break;
    if (const UniqueFd abandoned = lock(entry->path().string())) {
      config::remove_scratch_folder(entry->path().string());
    }
  }
  return claim;
}

}  // namespace ddp::node
