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
#include "worker/python/native/device_backend_work.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/registered_allocator.h"
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

// A name that the store has not seen: it may have served an earlier group.
std::string name_in(Store& store, int rank) {
  const auto count = store.add(fmt::format("joined/{}", rank), 1);
  if (!count) throw CollectiveError(count.error().message, count.error().code, rank);
  return fmt::format("ddp/{}", *count);
}

ProcessGroupOptions group_options(const BackendOptions& options) {
  ProcessGroupOptions group;
  group.timeout = options.timeout;
  group.connect_timeout = options.timeout;
  return group;
}

std::shared_ptr<runtime::Group> meet(std::shared_ptr<Store> store, const std::string& name,
                                     int rank, int size, const BackendOptions& options) {
  runtime::Meeting meeting;
  meeting.store = std::move(store);
  meeting.prefix = name;
  meeting.addresses = own_addresses();
  const auto engine = engine_of(process_variable("DDP_LINK"));
  if (!engine) throw std::invalid_argument(engine.error().message);
  meeting.engine = *engine;
  meeting.group = options.group_name;
  meeting.world_ranks.assign(options.global_ranks.begin(), options.global_ranks.end());
  return runtime::make_met_group(rank, size, std::move(meeting), Clock::now() + options.timeout,
                                 group_options(options));
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
  with_torch_errors([&] {
    try {
      const auto own_store = std::make_shared<StoreAdapter>(store_);
      const std::string name = name_in(*own_store, rank_);
      members_.host = meet(own_store, name, rank_, size_, options_);
      members_.devices =
          std::make_shared<DeviceGroups>(own_store, name, members_.host, group_options(options_));
    } catch (const CollectiveError&) {
      check.rethrow();
      throw;
    }
  });
}

DdpBackend::~DdpBackend() { shutdown(); }

void DdpBackend::shutdown() {
  Members members;
  {
    const std::lock_guard lock(mutex_);
    members = std::exchange(members_, {});
  }
  if (::getpid() != process_) {
    // A forked child has none of the groups' threads, and is no member.
    new Members(std::move(members));
    return;
  }
  const WithoutGil without_gil;
  members.devices.reset();
  members.host.reset();
}

void shut_down_all() {
  for (const auto& backend : backends().alive()) backend->shutdown();
}

void DdpBackend::abort() {
  Members members;
  {
    const std::lock_guard lock(mutex_);
    members = members_;
  }
  if (!members.host) return;
  members.host->abort("abort() was called");
  const Failure cause = *members.host->failure();
  for (const auto& device : members.devices->made()) device->group().abort_from_peer(cause);
}

DdpBackend::Members DdpBackend::live() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, members_.host != nullptr, "the process group ",
                   options_.group_name, " has been destroyed");
  return members_;
}

DdpBackend::WorkHandle DdpBackend::run(const Call& call, Operands operands,
                                       std::vector<Tensors> value,
                                       const std::vector<Issue>& issues) {
  if (operands.device().is_cuda()) {
    std::vector<Operands> all;
    all.push_back(std::move(operands));
    return run_on_device(call, std::move(all), std::move(value), issues);
  }
  const std::shared_ptr<runtime::Group> group = live().host;
  if (const auto arena = group->shared_arena()) {
    for (const at::Tensor& tensor : operands.used()) learn_size(arena, tensor);
  }
  auto work = c10::make_intrusive<BackendWork>(rank_, call.type, call.title, sequence_++,
                                               std::move(operands), std::move(value));
  OpOptions options;
  options.timeout = timeout_of(call);
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

DdpBackend::WorkHandle DdpBackend::run_on_device(const Call& call, std::vector<Operands> operands,
                                                 std::vector<Tensors> value,
                                                 const std::vector<Issue>& issues) {
  const std::shared_ptr<DeviceGroups> devices = live().devices;
  const c10::Device device = operands.front().device();
  auto work = c10::make_intrusive<DeviceBackendWork>(rank_, call.type, call.title, sequence_++,
                                                     std::move(operands), std::move(value), device);
  OpOptions options;
  options.timeout = timeout_of(call);
  options.on_done = [work](std::exception_ptr /*failure*/) {};  // Keeps the tensors until then.
  const WithoutGil without_gil;
  with_torch_errors([&] {
    const std::shared_ptr<DeviceGroup> group = devices->of(device);
    std::vector<WorkPtr> issued;
    for (const Issue& issue : issues) issued.push_back(issue(group->group(), options));
    work->issued(*group, std::move(issued));
  });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

at::Tensor DdpBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(), "allocate_tensor: the tensor is to be on ",
                    options.device().str(), "; this backend has memory for the CPU only");
  TORCH_CHECK_VALUE(size >= 0, "allocate_tensor: the size is ", size);
  const auto arena = live().host->shared_arena();
  return arena ? allocate_registered(arena, size, options) : at::empty({size}, options);
}

void DdpBackend::startCoalescing() {
  TORCH_CHECK(!coalescing_, "startCoalescing: the group is coalescing already");
  coalescing_ = true;
}

DdpBackend::WorkHandle DdpBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "endCoalescing: the group is not coalescing");
  coalescing_ = false;
  if (!coalesced_operands_.empty()) {
    coalesced_.push_back(
        run_on_device({OpType::COALESCED, "ddp:batch"}, std::exchange(coalesced_operands_, {}), {},
                      {[transfers = std::exchange(coalesced_transfers_, {})](ProcessGroup& group,
                                                                             OpOptions each) {
                        return dynamic_cast<NcclGroup&>(group).batch(transfers, std::move(each));
                      }}));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

void DdpBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto group = live().host;
  const auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_.load();
  const WithoutGil without_gil;
  with_torch_errors([&] { group->monitored_barrier(timeout, wait_all_ranks); });
}

// The Work is null if the message waits for endCoalescing().
DdpBackend::WorkHandle DdpBackend::transfer(const Call& call, Operands operands, Transfer transfer,
                                            Tensors& tensors, const Issue& issue) {
  if (!operands.device().is_cuda() || !coalescing_) {
    return run(call, std::move(operands), {tensors}, {issue});
  }
  coalesced_operands_.push_back(std::move(operands));
  coalesced_transfers_.push_back(transfer);
  return {};
}

DdpBackend::WorkHandle DdpBackend::send(Tensors& tensors, int destination, int tag) {
  Operands operands = message_operands("send", tensors, tag);
  const Buffer buffer = operands.input(tensors[0]);
  return transfer({OpType::SEND, "ddp:send"}, std::move(operands),
                  {Transfer::Direction::kSend, destination, buffer}, tensors,
                  [=](ProcessGroup& group, OpOptions each) {
                    return group.send(buffer, destination, static_cast<std::uint32_t>(tag),
                                      std::move(each));
                  });
}

DdpBackend::WorkHandle DdpBackend::recv(Tensors& tensors, int source, int tag) {
  Operands operands = message_operands("recv", tensors, tag);
  const Buffer buffer = operands.output(tensors[0]);
  return transfer(
      {OpType::RECV, "ddp:recv"}, std::move(operands), {Transfer::Direction::kRecv, source, buffer},
      tensors, [=](ProcessGroup& group, OpOptions each) {
        return group.recv(buffer, source, static_cast<std::uint32_t>(tag), std::move(each));
      });
}

DdpBackend::WorkHandle DdpBackend::recvAnysource(Tensors& tensors, int tag) {
  Operands operands = message_operands("recv", tensors, tag);
  const Buffer buffer = operands.output(tensors[0]);
  operands.require(operands.device().is_cpu(),
                   "NCCL has no receive from any rank; name the source");
  const auto group = live().host;
  const auto message = std::make_shared<std::shared_ptr<runtime::MessageWork>>();
  auto work = run({OpType::RECVANYSOURCE, "ddp:recv"}, std::move(operands), {tensors},
                  {[=](ProcessGroup& /*group*/, OpOptions each) {
                    *message =
                        group->recv_any(buffer, static_cast<std::uint32_t>(tag), std::move(each));
                    return *message;
                  }});
  static_cast<BackendWork&>(*work).issued_from_any(*message);
  return work;
}

}  // namespace ddp::python
