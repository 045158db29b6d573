#include "common/process/spawn_settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "common/process/descriptor_limit.h"

extern char** environ;

namespace ddp {

UniqueFd moved_up(UniqueFd fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstOwnFd)); }

bool Pipe::open() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  read_end = moved_up(UniqueFd(ends[0]));
  write_end = moved_up(UniqueFd(ends[1]));
  return read_end && write_end;
}

SpawnSettings::SpawnSettings(short flags) {
  ::posix_spawn_file_actions_init(&actions_);
  ::posix_spawnattr_init(&attributes_);
  ::posix_spawnattr_setflags(
      &attributes_, static_cast<short>(flags | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  ::posix_spawnattr_setpgroup(&attributes_, 0);
  sigset_t none;
  ::sigemptyset(&none);
  block(none);
  ::posix_spawnattr_setsigdefault(&attributes_, &none);
}

SpawnSettings::~SpawnSettings() {
  ::posix_spawnattr_destroy(&attributes_);
  ::posix_spawn_file_actions_destroy(&actions_);
}

void SpawnSettings::give(int fd, int number) {
  ::posix_spawn_file_actions_adddup2(&actions_, fd, number);
}

void SpawnSettings::block(const sigset_t& signals) {
  ::posix_spawnattr_setsigmask(&attributes_, &signals);
}

void SpawnSettings::set_default(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  ::posix_spawnattr_setsigdefault(&attributes_, &set);
}

int SpawnSettings::spawn(pid_t& pid, std::vector<std::string> words) const {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const DescriptorLimitOfStart limit;
  return ::posix_spawnp(&pid, argv.front(), &actions_, &attributes_, argv.data(), environ);
}

}  // namespace ddp
