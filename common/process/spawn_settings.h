#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "common/base/unique_fd.h"

namespace ddp {

// The programs that we start are given descriptors below this number. Ours must be above.
inline constexpr int kFirstOwnFd = 10;

// The same file under a number from kFirstOwnFd on, close-on-exec. Invalid, with errno, if that
// fails.
UniqueFd moved_up(UniqueFd fd);

// A pipe with such numbers.
struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;

  bool open();  // False with errno.
};

// Settings for posix_spawn, and the call itself. One thread at a time.
class SpawnSettings {
 public:
  // `flags`: POSIX_SPAWN_SETSID, POSIX_SPAWN_SETPGROUP (a group of its own), both or none. No
  // signal is blocked in the child unless block() says so.
  explicit SpawnSettings(short flags = 0);
  ~SpawnSettings();
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  // The child gets `fd` as `number`. No `fd` may be equal to any `number`.
  void give(int fd, int number);
  // These signals are blocked in the child from the start.
  void block(const sigset_t& signals);
  // These signals are not ignored in the child, even if they are in this process.
  void set_default(std::initializer_list<int> signals);

  // Starts words[0], which is looked up in PATH unless it has a slash. The child gets this
  // process's environment and the limit of open files that this process was started with. Returns 0
  // or an errno.
  int spawn(pid_t& pid, std::vector<std::string> words) const;

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace ddp
