#include "worker/python/native/backend.h"

#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "worker/python/native/device_backend_work.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/interruptible.h"
#include "worker/python/native/registered_allocator.h"

namespace ddp::python {
namespace {

using c10d::OpType;

Operands message_operands(const char* operation, const std::vector<at::Tensor>& tensors, int tag) {
  Operands operands(operation);
  operands.require_one(tensors);
  operands.require(tag >= 0, fmt::format("the tag is {}, but must not be negative", tag));
  return operands;
}

}  // namespace

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
    const auto issue_all = [&] {
      for (const Issue& issue : issues) issued.push_back(issue(*group, options));
    };
    const WithoutGil without_gil;
    if (options.synchronous) {
      interruptible(issue_all);
    } else {
      with_torch_errors(issue_all);
    }
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
