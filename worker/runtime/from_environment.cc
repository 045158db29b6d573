#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/store/tcp_store.h"
#include "worker/runtime/init_process_group.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/srun_tasks.h"
#include "worker/runtime/worker_environment.h"
#include "worker/runtime/world_group.h"
#include "worker/transport/tcp.h"

namespace ddp {
namespace {

// The first group of a round has the plain prefix. Groups that a process makes later in the round
// get a number, which all ranks count alike.
std::string store_prefix(const WorkerEnvironment& worker) {
  static std::mutex mutex;
  static std::map<std::string, std::pair<Round, int>> counts;  // For each job's latest round.
  const std::lock_guard lock(mutex);
  auto& [round, groups] = counts.try_emplace(worker.run_id, kNoRound, 0).first->second;
  if (round != worker.round) groups = 0;
  round = worker.round;
  const int count = groups++;
  const std::string prefix = fmt::format("ddp/{}/{}", worker.run_id, worker.round);
  return count == 0 ? prefix : fmt::format("{}.{}", prefix, count);
}

runtime::Meeting open_meeting(const WorkerEnvironment& worker, TimePoint deadline) {
  runtime::Meeting meeting;
  if (worker.master_addr.empty()) return meeting;
  const auto timeout = std::chrono::ceil<Duration>(deadline - Clock::now());
  auto store = connect_tcp_store(worker.master_addr, worker.master_port, timeout);
  if (!store) {
    throw CollectiveError(
        fmt::format("rank {} cannot reach the store at MASTER_ADDR={} MASTER_PORT={}: {}",
                    worker.rank, worker.master_addr, worker.master_port, store.error().message),
        store.error().code, -1);
  }
  meeting.store = std::move(*store);
  meeting.prefix = store_prefix(worker);
  meeting.engine = worker.engine;
  meeting.addresses = own_addresses(worker.master_addr, worker.master_port);
  return meeting;
}

void warn_of_lone_tasks() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::string notice = runtime::notice_of_lone_tasks(process_variable);
    if (!notice.empty()) fmt::print(stderr, "ddp: {}\n", notice);
  });
}

}  // namespace

namespace runtime {

std::shared_ptr<Group> make_described_group(const WorkerEnvironment& worker,
                                            const ProcessGroupOptions& options) {
  if (worker.world_size == 1) warn_of_lone_tasks();
  const TimePoint deadline = Clock::now() + options.connect_timeout;
  return make_world_group(worker, open_meeting(worker, deadline), deadline, options);
}

}  // namespace runtime

std::shared_ptr<ProcessGroup> ProcessGroup::from_environment(const ProcessGroupOptions& options) {
  // Other ranks than ddp-run's have no store yet.
  if (is_placed_by_mpi()) return init_process_group({.group = options});
  return runtime::make_described_group(read_worker_environment(process_variable), options);
}

}  // namespace ddp
