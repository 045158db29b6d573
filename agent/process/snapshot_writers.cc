#include "agent/process/snapshot_writers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "agent/process/process_watch.h"
#include "agent/process/spawn_program.h"
#include "common/base/check.h"
#include "common/base/host_name.h"
#include "common/base/json_text.h"
#include "common/base/signal_name.h"
#include "common/config/snapshot_writer_mark.h"
#include "common/process/this_process.h"

namespace ddp::agent {
namespace {

constexpr int kNice = 10;
// The class "best effort" with the lowest level. Some systems lack linux/ioprio.h.
constexpr int kIoPriority = (2 << 13) | 7;
constexpr int kIoPriorityOfProcess = 1;
// More than a result needs. Further output of the writer is cut off.
constexpr std::size_t kOutputLimit = 64 * 1024;

// Training comes first. Errors are ignored, because a writer with normal priority works as well.
void lower_priority(pid_t pid) {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), kNice);
  ::syscall(SYS_ioprio_set, kIoPriorityOfProcess, pid, kIoPriority);
  // If autogroups share the processor evenly, a nice value counts only inside its session.
  const UniqueFd group(
      ::open(fmt::format("/proc/{}/autogroup", pid).c_str(), O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(kNice);
  if (group) (void)!::write(group.get(), text.data(), text.size());
}

// Not a pipe, because a writer that outlives this process must not fail when it writes.
UniqueFd output_file() { return UniqueFd(::memfd_create("ddp-writer", MFD_CLOEXEC)); }

std::string last_line(int fd) {
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) return "";
  const auto size = static_cast<std::size_t>(std::max<off_t>(info.st_size, 0));
  std::string text(std::min(size, kOutputLimit), '\0');
  const ssize_t read =
      ::pread(fd, text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(read > 0 ? static_cast<std::size_t>(read) : 0);
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

// What the writer says while a system call does not return.
struct Standing {
  std::string call;
  std::string path;
  double seconds = 0;
  double limit = 0;
};

std::optional<Standing> parse_standing(std::string_view line) {
  const nlohmann::json json = parse_json_or_discard(line);
  if (!json.is_object() || !json.contains("call")) return std::nullopt;
  try {
    return Standing{json.at("call").get<std::string>(), json.at("path").get<std::string>(),
                    json.at("seconds").get<double>(), json.at("limit").get<double>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<wire::SnapshotWritten> parse_result(std::string_view line) {
  const nlohmann::json json = parse_json_or_discard(line);
  if (!json.is_object()) return std::nullopt;
  try {
    wire::SnapshotWritten written;
    written.ok = json.value("ok", false);
    written.error = json.value("error", "");
    written.path = json.value("path", "");
    written.bytes = json.value("bytes", std::int64_t{0});
    written.seconds = json.value("seconds", 0.0);
    written.warnings = json.value("warnings", std::vector<std::string>{});
    return written;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// Why `fd` cannot be a snapshot; empty if it can. Only memory files have seals. One that cannot
// shrink does not end its reader by SIGBUS.
std::string memory_fault(int fd, std::int64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return "the snapshot's descriptor is not a memory file (memfd_create)";
  if ((seals & F_SEAL_SHRINK) == 0) {
    return "the snapshot's memory may still shrink (F_ADD_SEALS, F_SEAL_SHRINK)";
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || bytes <= 0 || info.st_size < bytes) {
    return fmt::format("the snapshot should have {} bytes, but its memory has {}", bytes,
                       info.st_size);
  }
  return "";
}

}  // namespace

struct SnapshotWriters::Job {
  int worker = 0;
  std::string name;
  wire::SubmitSnapshot snapshot;
  Reply reply;
  UniqueFd memory;
  UniqueFd lock = {};
  int runs = 0;
  pid_t pid = 0;  // 0: it waits for its turn.
  std::shared_ptr<ProcessWatch> end = {};
  UniqueFd out = {};
  UniqueFd err = {};
  std::optional<LifeSigns> life = {};
  Round round = kNoRound;  // In which it began.
  std::string news = {};   // Lines about that round, for its writer.
  UniqueFd news_to = {};   // The end of the writer's pipe to which they go.
  double told_at = 0;      // How long a call had stood when people were told last.
  int looks_at_end = 0;    // Looks that have found it alive after it said that it gives up.
  std::string fault = {};  // Why it failed: its last writer only tells rank 0. Empty: it has not.
};

SnapshotWriters::SnapshotWriters(asio::io_context& io, Settings settings, Events events)
    : io_(io), settings_(std::move(settings)), events_(std::move(events)), timer_(io) {}

SnapshotWriters::~SnapshotWriters() = default;

std::string SnapshotWriters::refusal(int worker, const wire::SubmitSnapshot& snapshot,
                                     const std::vector<UniqueFd>& descriptors) const {
  if (limit() == 0) return "the agent has no ddp-checkpoint beside it to write snapshots with";
  const auto count = std::count_if(jobs_.begin(), jobs_.end(),
                                   [worker](const Job& job) { return job.worker == worker; });
  if (count >= kPerWorker) {
    return fmt::format(
        "{} snapshots of this worker are not written yet; wait for one of them before you submit "
        "the next",
        kPerWorker);
  }
  const std::size_t needed = snapshot.locked ? 2 : 1;
  if (descriptors.size() < needed || !descriptors.front()) {
    return fmt::format(
        "{} of {} descriptors came with the snapshot; has the agent on this node too many files "
        "open (ulimit -n)?",
        descriptors.size(), needed);
  }
  return memory_fault(descriptors.front().get(), snapshot.bytes);
}

// Empty: none.
std::string SnapshotWriters::held_writers(int worker) const {
  for (const auto& [pid, left] : left_) {
    if (left.worker == worker) {
      return fmt::format("the disk still holds the writer of step {} (pid {}), which was given up",
                         left.step, pid);
    }
  }
  return "";
}

void SnapshotWriters::submit(int worker, const std::string& name, Round round,
                             const wire::SubmitSnapshot& snapshot,
                             std::vector<UniqueFd> descriptors, Reply reply) {
  if (std::string why = refusal(worker, snapshot, descriptors); !why.empty()) {
    wire::SnapshotWritten refused;
    refused.id = snapshot.id;
    refused.error = std::move(why);
    reply(refused);
    return;
  }
  Job& job =
      jobs_.emplace_back(Job{worker, name, snapshot, std::move(reply), std::move(descriptors[0])});
  if (snapshot.locked) job.lock = std::move(descriptors[1]);
  job.round = round;
  job.fault = held_writers(worker);
  if (jobs_.size() == 1) timer_.after(settings_.look, [this] { look_after(); });
  events_.on_count(under_way());
  start_next(worker);
}

void SnapshotWriters::start_next(int worker) {
  const auto next = std::find_if(jobs_.begin(), jobs_.end(),
                                 [worker](const Job& job) { return job.worker == worker; });
  if (next != jobs_.end() && next->pid == 0) run(next);
}

void SnapshotWriters::run(JobPlace job) {
  ++job->runs;
  job->out = output_file();
  job->err = output_file();
  if (!job->out || !job->err) return fail(job, "no descriptor is left for its writer's output");
  SpawnRequest request;
  request.command = {settings_.program, "write", "--snapshot-fd",
                     std::to_string(job->memory.get())};
  request.inherited_fds = {job->memory.get()};
  if (job->lock) {
    request.command.insert(request.command.end(), {"--lock-fd", std::to_string(job->lock.get())});
    request.inherited_fds.push_back(job->lock.get());
  }
  UniqueFd news_from;
  if (int ends[2]; ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
    news_from = UniqueFd(ends[0]);
    job->news_to = UniqueFd(ends[1]);
    send_news(*job, job->news);
    request.command.insert(request.command.end(), {"--round-fd", std::to_string(ends[0])});
    request.inherited_fds.push_back(ends[0]);
  }
  if (!job->fault.empty()) {
    request.command.insert(request.command.end(), {"--give-up", job->fault});
  }
  request.environment = settings_.environment;
  request.environment.emplace_back(config::kSnapshotWriterMark);
  request.stdout_fd = job->out.get();
  request.stderr_fd = job->err.get();
  request.detached = true;
  Result<SpawnedProcess> process = spawn(request);
  if (!process) return fail(job, process.error().message);
  job->pid = process->pid;
  lower_priority(job->pid);
  job->life.emplace(job->pid, settings_.quiet_limit, settings_.look);
  job->end = ProcessWatch::start(io_, std::move(process->pidfd),
                                 [this, pid = job->pid] { return reap(pid); });
}

std::vector<pid_t> SnapshotWriters::pids() const {
  std::vector<pid_t> all;
  for (const Job& job : jobs_) {
    if (job.pid != 0) all.push_back(job.pid);
  }
  for (const auto& [pid, left] : left_) all.push_back(pid);
  return all;
}

// A writer that starts again is told all once more.
void SnapshotWriters::tell(Job& job, const std::string& line) {
  job.news += line;
  send_news(job, line);
}

// What has no room in the pipe is not told: then its writer waits.
void SnapshotWriters::send_news(const Job& job, const std::string& text) {
  if (job.news_to && text.size() <= PIPE_BUF)
    (void)!::write(job.news_to.get(), text.data(), text.size());
}

void SnapshotWriters::round_ended() {
  for (Job& job : jobs_) {
    if (job.news.empty()) tell(job, "over\n");
  }
}

void SnapshotWriters::ranks_lost(Round round, const std::vector<Rank>& ranks) {
  for (Job& job : jobs_) {
    if (job.round == round && !ranks.empty())
      tell(job, fmt::format("lost {}\n", fmt::join(ranks, " ")));
  }
}

SnapshotWriters::JobPlace SnapshotWriters::find(pid_t pid) {
  return std::find_if(jobs_.begin(), jobs_.end(), [pid](const Job& one) { return one.pid == pid; });
}

// False if the status of the writer is still to be taken.
bool SnapshotWriters::reap(pid_t pid) {
  const auto job = find(pid);
  if (job == jobs_.end() && !left_.contains(pid)) return true;
  siginfo_t info{};
  const int result = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
  if (result == 0 && info.si_pid == 0) return false;
  if (job == jobs_.end()) {
    left_.extract(pid).mapped().end->close();
    return true;
  }
  job->pid = 0;
  job->end->close();
  const bool exited = result == 0 && info.si_code == CLD_EXITED;
  const int killed_by = result == 0 ? info.si_status : SIGKILL;
  on_end(job, exited ? info.si_status : 0, exited ? 0 : killed_by);
  return true;
}

void SnapshotWriters::on_end(JobPlace job, int exit_code, int signal) {
  if (!job->fault.empty()) return fail(job, job->fault);
  if (signal != 0 && job->runs < settings_.runs) {
    events_.print(
        fmt::format("the process that writes the checkpoint of step {} for {} was ended by {}; "
                    "starting it again",
                    job->snapshot.step, job->name, signal_name(signal)));
    return run(job);
  }
  if (signal != 0) {
    job->fault =
        fmt::format("its writer was ended by {}, {} times", signal_name(signal), job->runs);
    return run(job);
  }
  auto written = parse_result(last_line(job->out.get()));
  if (exit_code == 0 && written && written->ok) return finish(job, std::move(*written));
  std::string why = written && !written->error.empty() ? written->error : last_line(job->err.get());
  if (why.empty()) why = fmt::format("its writer ended with status {}", exit_code);
  fail(job, why);
}

void SnapshotWriters::fail(JobPlace job, const std::string& why) {
  wire::SnapshotWritten written;
  written.error = why;
  finish(job, std::move(written));
}

void SnapshotWriters::finish(JobPlace job, wire::SnapshotWritten written) {
  const int worker = job->worker;
  written.id = job->snapshot.id;
  if (!job->reply(written)) tell_people(*job, written);
  jobs_.erase(job);
  if (jobs_.empty()) timer_.cancel();
  start_next(worker);
  events_.on_count(under_way());
}

// For a worker that is gone. If a checkpoint is complete, only one rank prints it.
void SnapshotWriters::tell_people(const Job& job, const wire::SnapshotWritten& written) const {
  if (written.ok && !written.path.empty()) {
    events_.print(
        fmt::format("the checkpoint of step {} was finished after its worker had ended: {}",
                    job.snapshot.step, written.path));
  } else if (!written.ok) {
    events_.print(
        fmt::format("the checkpoint of step {} was not finished by {}, whose worker has ended: {}",
                    job.snapshot.step, job.name, written.error));
  }
}

// Kills the writer and does not wait for its end.
void SnapshotWriters::leave(JobPlace job, const std::string& why) {
  DDP_CHECK(job->pid > 1, "pid {} is not a process id", job->pid);
  ::kill(job->pid, SIGKILL);
  left_[std::exchange(job->pid, 0)] = {job->worker, job->snapshot.step, std::move(job->end)};
  fail(job, why);
}

// Why the writer is to be left; empty if it is not. Tells people that its disk is slow.
std::string SnapshotWriters::fault_at_look(Job& job) {
  constexpr int kLooksAtEnd = 2;
  const std::string line = last_line(job.out.get());
  if (const auto standing = parse_standing(line)) {
    const std::string& path = standing->path;
    if (standing->seconds < job.told_at) job.told_at = 0;  // Another call.
    if (standing->seconds >= std::max(settings_.slow_seconds, 2 * job.told_at)) {
      job.told_at = standing->seconds;
      events_.print(
          fmt::format("checkpoint of step {}: {} has been stuck in {} for {:.0f} s on {}; training "
                      "goes on, and the save is given up after {:.3g} s",
                      job.snapshot.step, path.substr(path.rfind('/') + 1), standing->call,
                      standing->seconds, host_name(), standing->limit));
    }
  } else if (const auto written = parse_result(line); written && !written->error.empty()) {
    // Its other threads have ended, but the kernel holds the one that stands in the call.
    if (++job.looks_at_end >= kLooksAtEnd) return written->error;
  }
  if (job.life->check()) return "";
  events_.print(
      fmt::format("the process that writes the checkpoint of step {} for {} (pid {}) has done "
                  "nothing for {:.3g} s; it is given up",
                  job.snapshot.step, job.name, job.pid,
                  static_cast<double>(settings_.quiet_limit.count()) / 1'000));
  return "its writer hung and was given up";
}

void SnapshotWriters::look_after() {
  std::map<pid_t, std::string> faults;
  for (Job& job : jobs_) {
    if (job.pid == 0) continue;
    if (std::string fault = fault_at_look(job); !fault.empty()) faults[job.pid] = std::move(fault);
  }
  for (const auto& [pid, fault] : faults) {
    if (const auto job = find(pid); job != jobs_.end()) leave(job, fault);
  }
  if (!jobs_.empty()) timer_.after(settings_.look, [this] { look_after(); });
}

void SnapshotWriters::give_up() {
  if (jobs_.empty()) return;
  // Snapshots that wait are not written.
  for (const pid_t pid : pids()) {
    DDP_CHECK(pid > 1, "pid {} is not a process id", pid);
    ::kill(pid, SIGKILL);
  }
  jobs_.clear();
  timer_.cancel();
  events_.on_count(0);
}

std::string installed_writer() {
  std::string program = program_beside("ddp-checkpoint");
  return ::access(program.c_str(), X_OK) == 0 ? program : "";
}

}  // namespace ddp::agent
