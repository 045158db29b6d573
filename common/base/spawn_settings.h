#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/types.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace ddp {

// How posix_spawn starts a program, and its call. One thread at a time.
class SpawnSettings {
 public:
  // `flags` are of POSIX_SPAWN_SETSID and POSIX_SPAWN_SETPGROUP (a group of its own). Signals are
  // not blocked in the child, unless block() says so.
  explicit SpawnSettings(short flags = 0);
  ~SpawnSettings();
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  // The child has `fd` as `number`. What is given must not lie at one of the numbers itself.
  void give(int fd, int number);
  // Blocked in the child from the start.
  void block(const sigset_t& signals);
  // Not ignored in the child, though they may be here.
  void set_default(std::initializer_list<int> signals);

  // Starts words[0], looked for in PATH unless it has a slash, with this environment and the limit
  // of open files that this process was started with. 0, or the errno.
  int spawn(pid_t& pid, std::vector<std::string> words) const;

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace ddp
