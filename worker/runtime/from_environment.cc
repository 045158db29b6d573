#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/store/tcp_store.h"
#include "worker/runtime/group.h"
#include "worker/runtime/node_links.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/tcp.h"

namespace ddp {
namespace {

[[noreturn]] void throw_error(const std::error_code& code, Rank suspect, const std::string& text) {
  throw CollectiveError(text, code, suspect);
}

// The first group of a round has the plain prefix; groups that a process makes later in it are told
// apart by a number, which all ranks count alike.
std::string store_prefix(const WorkerEnvironment& worker) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, Round>, int> counts;
  const std::lock_guard lock(mutex);
  const int count = counts[{worker.run_id, worker.round}]++;
  const std::string prefix = fmt::format("ddp/{}/{}", worker.run_id, worker.round);
  return count == 0 ? prefix : fmt::format("{}.{}", prefix, count);
}

std::shared_ptr<Segment> open_segment(const WorkerEnvironment& worker) {
  auto segment = worker.shm_fd >= 0
                     ? Segment::attach(worker.shm_fd, worker.local_size, worker.round)
                     : Segment::create(worker.local_size, worker.round);
  if (!segment) throw_error(segment.error().code, worker.rank, segment.error().message);
  return std::move(*segment);
}

std::unique_ptr<Transport> connect_nodes(const WorkerEnvironment& worker,
                                         std::shared_ptr<Segment> segment, TimePoint deadline) {
  const auto timeout = std::chrono::ceil<Duration>(deadline - Clock::now());
  auto store = TcpStore::connect(worker.master_addr, worker.master_port, timeout);
  if (!store) {
    throw_error(
        store.error().code, -1,
        fmt::format("rank {} cannot reach the store at MASTER_ADDR={} MASTER_PORT={}: {}",
                    worker.rank, worker.master_addr, worker.master_port, store.error().message));
  }
  std::unique_ptr<Transport> transport;
  NodeLinks links(**store, store_prefix(worker), worker, deadline);
  const auto addresses = reachable_addresses(worker.master_addr, worker.master_port);
  if (auto failure = links.connect(addresses, std::move(segment), transport)) {
    throw_error(failure->code, failure->suspect, failure->text);
  }
  return transport;
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroup::from_environment(const ProcessGroupOptions& options) {
  const WorkerEnvironment worker = read_worker_environment(process_variable);
  const TimePoint deadline = Clock::now() + options.connect_timeout;
  auto segment = open_segment(worker);
  std::unique_ptr<Transport> transport;
  if (worker.nodes > 1) {
    transport = connect_nodes(worker, std::move(segment), deadline);
  } else {
    transport =
        std::make_unique<Transport>(Topology({worker.local_size}, worker.rank), std::move(segment),
                                    nullptr, nullptr, spinning_pays(worker.local_size));
  }
  auto group = Group::make(std::move(transport), worker.round, options);
  // Whoever does not come is found now, with the time that is meant for coming.
  const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
  group->barrier({std::max(left, Duration(1)), "all ranks present"})->wait();
  return group;
}

}  // namespace ddp
