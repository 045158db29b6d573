#include "agent/process/round_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "agent/core/flight_report.h"
#include "agent/process/log_files.h"
#include "agent/process/spawn.h"
#include "common/base/check.h"
#include "common/base/descendants.h"

namespace ddp::agent {
namespace {

int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0
             ? CPU_COUNT(&cores)
             : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return entries;
}

}  // namespace

RoundProcesses::RoundProcesses(asio::io_context& io, config::JobSpec spec, Console::Pair console,
                               Events events)
    : spec_(std::move(spec)),
      environment_(own_environment()),
      context_{io,
               spec_,
               environment_,
               std::move(console),
               usable_cores(),
               std::move(events.on_exit),
               std::move(events.on_progress)} {}

RoundProcesses::~RoundProcesses() {
  for (const auto& worker : workers_) worker->close();
}

std::vector<RoundProcesses::StartFailure> RoundProcesses::start(const wire::RoundStart& round) {
  DDP_CHECK(workers_.empty() && !memory_, "round {} starts on top of round {}", round.round,
            round_);
  const int nproc = round.members.at(static_cast<std::size_t>(round.group_rank)).nproc;
  std::vector<StartFailure> failures;
  auto memory = RoundMemory::create(nproc, round.round);
  if (!memory) {
    for (int i = 0; i < nproc; ++i)
      failures.push_back({i, spawn_failure_status(memory.error()), memory.error().message});
    return failures;
  }
  memory_ = std::move(*memory);
  round_ = round.round;
  for (int i = 0; i < nproc; ++i) {
    auto worker = Worker::start(context_, round, i, memory_->fd());
    if (worker) {
      workers_.push_back(std::move(*worker));
    } else {
      failures.push_back({i, spawn_failure_status(worker.error()), worker.error().message});
    }
  }
  return failures;
}

void RoundProcesses::signal(int number, const std::string& abort_reason) {
  if (!abort_reason.empty()) {
    if (memory_) memory_->abort(abort_reason);
    for (const auto& worker : workers_) {
      if (worker->running()) worker->send(wire::Abort{round_, abort_reason});
    }
  }
  for (const auto& worker : workers_) worker->signal(number);
}

std::shared_ptr<Worker> RoundProcesses::find(pid_t pid) const {
  for (const auto& worker : workers_) {
    if (worker->running() && worker->pid() == pid) return worker;
  }
  return nullptr;
}

void RoundProcesses::reap() {
  for (;;) {
    // Looks first and takes afterwards: a worker's status belongs to the worker.
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (const auto worker = find(info.si_pid)) {
      worker->reap();
    } else {
      ::waitid(P_PID, static_cast<id_t>(info.si_pid), nullptr, WEXITED | WNOHANG);
    }
  }
}

bool RoundProcesses::clear(Duration limit) {
  if (!kill_descendants(0, limit)) return false;
  abandon();
  return true;
}

// Whoever failed, what the others waited for is in the memory that is about to go.
void RoundProcesses::keep_flights() {
  operations_.clear();
  if (!memory_) return;
  const std::vector<wire::Flight> flights = memory_->flights();
  const auto is_undone = [](const wire::FlightRecord& record) {
    return record.state != wire::FlightState::kDone;
  };
  const bool failed = memory_->header().abort.load() != 0 ||
                      std::any_of(flights.begin(), flights.end(), [&](const wire::Flight& flight) {
                        return std::any_of(flight.records.begin(), flight.records.end(), is_undone);
                      });
  if (!failed || flights.empty()) return;
  const auto now = Clock::now().time_since_epoch();
  operations_ =
      describe_flights(flights, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  if (spec_.log_dir.empty()) return;
  std::string lines;
  for (const wire::Flight& flight : flights) lines += wire::flight_json_lines(flight);
  const auto kept = append_flight_log(spec_.log_dir, spec_.job_id, round_, lines);
  if (!kept) context_.console.err->write(fmt::format("ddp-run: {}\n", kept.error().message));
}

void RoundProcesses::abandon() {
  keep_flights();
  for (const auto& worker : workers_) worker->close();
  workers_.clear();
  memory_.reset();
}

}  // namespace ddp::agent
