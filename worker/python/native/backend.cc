#include "worker/python/native/backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/store_adapter.h"
#include "worker/runtime/met_group.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/tcp.h"

namespace ddp::python {
namespace {

using c10d::OpType;

// Every backend of this process that may be alive.
class Backends {
 public:
  void add(const c10::intrusive_ptr<DdpBackend>& backend) {
    const std::lock_guard lock(mutex_);
    std::erase_if(backends_, [](const auto& each) { return each.expired(); });
    backends_.emplace_back(backend);
  }
  std::vector<c10::intrusive_ptr<DdpBackend>> alive() {
    const std::lock_guard lock(mutex_);
    std::vector<c10::intrusive_ptr<DdpBackend>> alive;
    for (const auto& each : backends_) {
      if (auto backend = each.lock()) alive.push_back(std::move(backend));
    }
    return alive;
  }

 private:
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<DdpBackend>> backends_;
};

Backends& backends() {
  // Never destroyed: a thread of a group may outlive static objects.
  static auto* const instance = new Backends;
  return *instance;
}

// Where other machines reach this one: by the way to the store of rank 0, if the environment says
// where that is.
std::vector<std::string> own_addresses() {
  const auto address = process_variable("MASTER_ADDR");
  const auto port =
      parse_whole_number<int>(process_variable("MASTER_PORT").value_or(""), 1, 65'535);
  if (!address || address->empty() || !port) return transport::reachable_addresses("127.0.0.1", 1);
  return transport::reachable_addresses(*address, *port);
}

std::shared_ptr<runtime::Group> meet(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int size, const BackendOptions& options) {
  runtime::Meeting meeting;
  meeting.store = std::make_shared<StoreAdapter>(store);
  // The store may have served an earlier group of this name.
  const auto count = meeting.store->add(fmt::format("joined/{}", rank), 1);
  if (!count) throw CollectiveError(count.error().message, count.error().code, rank);
  meeting.prefix = fmt::format("ddp/{}", *count);
  meeting.addresses = own_addresses();
  const auto engine = engine_of(process_variable("DDP_LINK"));
  if (!engine) throw std::invalid_argument(engine.error().message);
  meeting.engine = *engine;
  meeting.group = options.group_name;
  meeting.world_ranks.assign(options.global_ranks.begin(), options.global_ranks.end());
  ProcessGroupOptions group;
  group.timeout = options.timeout;
  group.connect_timeout = options.timeout;
  return runtime::make_met_group(rank, size, std::move(meeting), Clock::now() + options.timeout,
                                 group);
}

Operands message_operands(const char* operation, const std::vector<at::Tensor>& tensors, int tag) {
  Operands operands(operation);
  operands.require_one(tensors);
  operands.require(tag >= 0, fmt::format("the tag is {}, but must not be negative", tag));
  return operands;
}

}  // namespace

c10::intrusive_ptr<DdpBackend> DdpBackend::make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                int size, BackendOptions options) {
  auto backend = c10::make_intrusive<DdpBackend>(std::move(store), rank, size, std::move(options));
  backends().add(backend);
  return backend;
}

DdpBackend::DdpBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                       BackendOptions options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      timeout_(options_.timeout) {
  const WithoutGil without_gil;
  const SignalCheck check;
  group_ = with_torch_errors([&] {
    try {
      return meet(store_, rank_, size_, options_);
    } catch (const CollectiveError&) {
      check.rethrow();
      throw;
    }
  });
}

DdpBackend::~DdpBackend() { shutdown(); }

void DdpBackend::shutdown() {
  std::shared_ptr<runtime::Group> group;
  {
    const std::lock_guard lock(mutex_);
    group = std::move(group_);
  }
  if (::getpid() != process_) {
    // A forked child has none of the group's threads, and is no member.
    new std::shared_ptr<runtime::Group>(std::move(group));
    return;
  }
  const WithoutGil without_gil;
  group.reset();
}

void shut_down_all() {
  for (const auto& backend : backends().alive()) backend->shutdown();
}

void DdpBackend::abort() {
  std::shared_ptr<runtime::Group> group;
  {
    const std::lock_guard lock(mutex_);
    group = group_;
  }
  if (group) group->abort("abort() was called");
}

std::shared_ptr<runtime::Group> DdpBackend::live_group() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, group_ != nullptr, "the process group ", options_.group_name,
                   " has been destroyed");
  return group_;
}

DdpBackend::WorkHandle DdpBackend::run(const Call& call, Operands operands,
                                       std::vector<Tensors> value,
                                       const std::vector<Issue>& issues) {
  const std::shared_ptr<runtime::Group> group = live_group();
  auto work = c10::make_intrusive<BackendWork>(rank_, call.type, call.title, sequence_++,
                                               std::move(operands), std::move(value));
  OpOptions options;
  options.timeout = call.timeout.count() > 0 ? call.timeout : timeout_.load();
  const bool is_one = issues.size() == 1;
  options.synchronous = !call.is_async && is_one && !coalescing_;
  if (issues.empty()) {
    work->finish_now();
  } else {
    work->expect(static_cast<int>(issues.size()));
    options.on_done = [work](std::exception_ptr failure) {
      work->operation_done(std::move(failure));
    };
    std::vector<WorkPtr> issued;
    const WithoutGil without_gil;
    const std::optional<SignalCheck> check =
        options.synchronous ? std::make_optional<SignalCheck>() : std::nullopt;
    with_torch_errors([&] {
      try {
        for (const Issue& issue : issues) issued.push_back(issue(*group, options));
      } catch (const CollectiveError&) {
        if (check) check->rethrow();
        throw;
      }
    });
    work->issued(std::move(issued));
  }
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void DdpBackend::startCoalescing() {
  TORCH_CHECK(!coalescing_, "startCoalescing: the group is coalescing already");
  coalescing_ = true;
}

DdpBackend::WorkHandle DdpBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "endCoalescing: the group is not coalescing");
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

void DdpBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto group = live_group();
  const auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_.load();
  const WithoutGil without_gil;
  with_torch_errors([&] { group->monitored_barrier(timeout, wait_all_ranks); });
}

DdpBackend::WorkHandle DdpBackend::send(Tensors& tensors, int destination, int tag) {
  Operands operands = message_operands("send", tensors, tag);
  const Buffer buffer = operands.input(tensors[0]);
  return run({OpType::SEND, "ddp:send"}, std::move(operands), {tensors},
             {[=](runtime::Group& group, OpOptions each) {
               return group.send(buffer, destination, static_cast<std::uint32_t>(tag),
                                 std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::recv(Tensors& tensors, int source, int tag) {
  Operands operands = message_operands("recv", tensors, tag);
  const Buffer buffer = operands.output(tensors[0]);
  return run({OpType::RECV, "ddp:recv"}, std::move(operands), {tensors},
             {[=](runtime::Group& group, OpOptions each) {
               return group.recv(buffer, source, static_cast<std::uint32_t>(tag), std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::recvAnysource(Tensors& tensors, int tag) {
  Operands operands = message_operands("recv", tensors, tag);
  const Buffer buffer = operands.output(tensors[0]);
  const auto message = std::make_shared<std::shared_ptr<runtime::MessageWork>>();
  auto work = run({OpType::RECVANYSOURCE, "ddp:recv"}, std::move(operands), {tensors},
                  {[=](runtime::Group& group, OpOptions each) {
                    *message =
                        group.recv_any(buffer, static_cast<std::uint32_t>(tag), std::move(each));
                    return *message;
                  }});
  static_cast<BackendWork&>(*work).issued_from_any(*message);
  return work;
}

}  // namespace ddp::python
