#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.h"
#include "common/base/ids.h"
#include "common/base/json_text.h"
#include "common/base/unique_fd.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/checkpoint/snapshot_memory.h"
#include "worker/checkpoint/snapshot_writer.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"

namespace ddp::checkpoint {

const char kWriteHelp[] =
    "usage: ddp-checkpoint write --snapshot-fd N [--lock-fd M] [--round-fd R] [--part-timeout "
    "SECONDS]\n"
    "                            [--give-up REASON]\n"
    "Finishes one rank's share of a save from the snapshot in the memory behind the inherited\n"
    "descriptor N; rank 0's also publishes the checkpoint. M is the descriptor of the folder's "
    "lock,\n"
    "which this process holds while it lives. ddp-agent starts it, and again if it was killed: "
    "that\n"
    "does no harm at any point.\n"
    "  --part-timeout  how long rank 0 waits while nothing new comes from the other ranks (default "
    "10)\n"
    "  --round-fd      the reading end of a pipe: until the line \"over\", or until its other end "
    "is closed,\n"
    "                  rank 0 waits as long as the save may take. For the ranks of a line \"lost 2 "
    "3\" it\n"
    "                  does not wait at all\n"
    "  --give-up       only tells rank 0 that this rank's share will not come, and why\n"
    "Prints one line, {\"ok\":true,\"path\":..,\"bytes\":..,\"seconds\":..,\"warnings\":[..]} or\n"
    "{\"ok\":false,\"error\":..}; before it, once a second while a system call does not return,\n"
    "{\"call\":..,\"path\":..,\"seconds\":..,\"limit\":..}. Exit status 65 if the snapshot is "
    "damaged, 69 if it could not "
    "be\n"
    "written.\n";

namespace {

constexpr std::int64_t kDefaultPartTimeout = 10;

struct WriteArguments {
  int snapshot_fd = -1;
  int lock_fd = -1;
  int round_fd = -1;
  std::string give_up;  // The reason; empty: it writes.
  WriterOptions options;
};

// A descriptor that this process has inherited.
Result<int> descriptor(const Arguments& arguments, const std::string& name) {
  auto fd = integer_option(arguments, name, 0, -1);
  if (!fd) return fd.error();
  if (*fd >= 0 && (*fd > INT_MAX || ::fcntl(static_cast<int>(*fd), F_GETFD) < 0)) {
    return make_error(Errc::kInvalidArgument, "--{} {} is not an open descriptor", name, *fd);
  }
  return static_cast<int>(*fd);
}

Result<WriteArguments> parse_write(const std::vector<std::string>& arguments) {
  auto parsed = parse_arguments(
      {{}, {"snapshot-fd", "lock-fd", "round-fd", "part-timeout", "give-up"}}, arguments);
  if (!parsed) return parsed.error();
  if (!parsed->has("snapshot-fd")) {
    return make_error(Errc::kInvalidArgument, "--snapshot-fd is needed");
  }
  auto snapshot = descriptor(*parsed, "snapshot-fd");
  if (!snapshot) return snapshot.error();
  auto lock = descriptor(*parsed, "lock-fd");
  if (!lock) return lock.error();
  auto round = descriptor(*parsed, "round-fd");
  if (!round) return round.error();
  auto timeout = integer_option(*parsed, "part-timeout", 1, kDefaultPartTimeout);
  if (!timeout) return timeout.error();
  WriteArguments result{*snapshot, *lock, *round, parsed->value("give-up"), {}};
  result.options.leaves_retired = true;
  result.options.part_timeout = std::chrono::seconds(*timeout);
  return result;
}

int say(const nlohmann::json& line, int status, std::ostream& out) {
  out << dump_json(line) << std::endl;
  return status;
}

int say_failure(const Error& error, int status, std::ostream& out) {
  return say({{"ok", false}, {"error", error.message}}, status, out);
}

// What the agent tells of the save's round, over a pipe.
class RoundNews {
 public:
  explicit RoundNews(int fd) : fd_(fd) {}

  bool lasts() {
    read();
    return !is_over_;
  }
  std::set<Rank> lost_ranks() {
    read();
    return lost_;
  }

 private:
  void read() {
    pollfd end{fd_, POLLIN, 0};
    while (!is_closed_ && ::poll(&end, 1, 0) > 0) {
      char bytes[PIPE_BUF];
      const ssize_t count = ::read(fd_, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      is_closed_ = count <= 0;
      text_.append(bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    }
    is_over_ = is_over_ || is_closed_;
    for (std::size_t end_of_line = 0; (end_of_line = text_.find('\n')) != std::string::npos;) {
      take(text_.substr(0, end_of_line));
      text_.erase(0, end_of_line + 1);
    }
  }
  void take(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "over") is_over_ = true;
    for (Rank rank = 0; word == "lost" && words >> rank;) lost_.insert(rank);
  }

  const int fd_;
  std::string text_;
  bool is_closed_ = false;
  bool is_over_ = false;
  std::set<Rank> lost_;
};

// Another thread stands in the call. If the kernel does not let go of it, it outlives _exit(), but
// the agent has read what was said.
void tell_standing(const StandingCall& call, std::chrono::milliseconds limit, std::ostream& out) {
  const double seconds = std::chrono::duration<double>(limit).count();
  if (call.seconds < seconds) {
    say({{"call", call.call}, {"path", call.path}, {"seconds", call.seconds}, {"limit", seconds}},
        0, out);
    return;
  }
  const auto error =
      make_error(Errc::kTimeout, "{}, longer than a save may wait for the disk ({:.3g} s): {}",
                 call.text(), seconds, call.path);
  ::_exit(say_failure(error, kExitCheckpointFailed, out));
}

// Runs in a child process, so that this one ends now and its parent learns of the checkpoint. The
// child holds neither the lock nor anybody's pipe.
void remove_retired_later(const std::string& folder, int lock_fd) {
  if (lock_fd >= 0) ::close(lock_fd);
  const pid_t child = ::fork();
  if (child > 0) return;
  if (child == 0) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  }
  (void)Directory(posix_file_system(), folder).remove_retired();
  if (child == 0) ::_exit(kExitSuccess);
}

}  // namespace

int run_write(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed = parse_write(arguments);
  if (!parsed) return report_usage("write", parsed.error(), err);
  // Signals that end the job or the reader of the result must not cost the checkpoint.
  for (const int signal : {SIGPIPE, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  auto memory = SnapshotMemory::map(parsed->snapshot_fd);
  if (!memory) return say_failure(memory.error(), kExitDataInvalid, out);
  auto snapshot = open_snapshot(memory->bytes());
  if (!snapshot) return say_failure(snapshot.error(), kExitDataInvalid, out);
  if (!parsed->give_up.empty()) {
    SaveFolder(posix_file_system(), snapshot->plan).abandon(parsed->give_up);
    return say_failure(make_error(Errc::kAborted, "{}", parsed->give_up), kExitCheckpointFailed,
                       out);
  }
  if (parsed->round_fd >= 0) {
    const auto news = std::make_shared<RoundNews>(parsed->round_fd);
    parsed->options.round_lasts = [news] { return news->lasts(); };
    parsed->options.lost_ranks = [news] { return news->lost_ranks(); };
  }
  parsed->options.on_standing = [&out, limit = snapshot->plan.timeout](const StandingCall& call) {
    tell_standing(call, limit, out);
  };
  auto written = write_snapshot(posix_file_system(), *snapshot, parsed->options);
  if (!written) return say_failure(written.error(), kExitCheckpointFailed, out);
  const int status = say({{"ok", true},
                          {"path", written->path},
                          {"bytes", written->bytes},
                          {"seconds", written->seconds},
                          {"warnings", written->warnings}},
                         kExitSuccess, out);
  if (!written->path.empty()) remove_retired_later(snapshot->plan.directory, parsed->lock_fd);
  return status;
}

}  // namespace ddp::checkpoint
