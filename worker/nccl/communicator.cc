#include "worker/nccl/communicator.h"

#include <iterator>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "worker/collectives/half.h"
#include "worker/nccl/backoff.h"
#include "worker/nccl/failure_text.h"

namespace ddp::nccl {
namespace {

// How long abort() waits for a call in progress before it aborts the communicator under that call.
// A call takes microseconds, if NCCL does not wait for other ranks in it.
constexpr Duration kCallGrace{100};

int nccl_type(DType type) {
  constexpr int kTypes[] = {nccl::api::kUint8,   nccl::api::kInt8,    nccl::api::kInt32,
                            nccl::api::kInt64,   nccl::api::kFloat16, nccl::api::kBfloat16,
                            nccl::api::kFloat32, nccl::api::kFloat64};
  static_assert(std::size(kTypes) == kDTypes);
  return kTypes[static_cast<std::size_t>(type)];
}

// For kPremulSum it is made for each operation. NcclGroup has refused those of bits already.
nccl::api::RedOp nccl_op(ReduceOp::Kind kind) {
  constexpr nccl::api::RedOp kOps[] = {nccl::api::kSum, nccl::api::kAvg, nccl::api::kProd,
                                       nccl::api::kMin, nccl::api::kMax};
  return kind < std::size(kOps) ? kOps[kind] : -1;
}

// A factor in the representation of the elements that it multiplies.
union Factor {
  float f32;
  double f64;
  std::uint16_t f16;
};

Factor factor_for(DType type, double value) {
  Factor factor{};
  switch (type) {
    case DType::kF16:
      factor.f16 = collectives::f16_of_f32(static_cast<float>(value));
      break;
    case DType::kBF16:
      factor.f16 = collectives::bf16_of_f32(static_cast<float>(value));
      break;
    case DType::kF64:
      factor.f64 = value;
      break;
    default:
      factor.f32 = static_cast<float>(value);
      break;
  }
  return factor;
}

const char* call_name(DeviceOpKind kind) {
  switch (kind) {
    case DeviceOpKind::kAllReduce:
    case DeviceOpKind::kAllReduceCoalesced:
    case DeviceOpKind::kBarrier:
      return "ncclAllReduce";
    case DeviceOpKind::kBroadcast:
      return "ncclBroadcast";
    case DeviceOpKind::kReduce:
      return "ncclReduce";
    case DeviceOpKind::kAllGather:
      return "ncclAllGather";
    case DeviceOpKind::kReduceScatter:
      return "ncclReduceScatter";
    default:
      return "ncclSend and ncclRecv";
  }
}

}  // namespace

Outcome Communicator::ended() const {
  return Failure{Errc::kAborted, rank_,
                 fmt::format("rank {}: the communicator was aborted", rank_)};
}

Outcome Communicator::checked(const char* call, nccl::api::Result result) const {
  if (result == nccl::api::kSuccess) return std::nullopt;
  if (aborted_.load()) return ended();
  return nccl_failure(*library_, call, result, rank_);
}

template <typename Call>
Outcome Communicator::checked_call(const char* name, const Call& call) {
  const std::lock_guard lock(mutex_);
  const nccl::api::Comm comm = comm_.load();
  if (comm == nullptr || aborted_.load()) return ended();
  return checked(name, call(comm));
}

Outcome Communicator::init(const nccl::api::UniqueId& id) {
  const nccl::api::Api& api = library_->nccl();
  nccl::api::Comm comm = nullptr;
  nccl::api::Config config;
  const nccl::api::Result result = api.comm_init_rank_config(&comm, size_, id, rank_, &config);
  {
    const std::lock_guard lock(mutex_);
    comm_.store(comm);
  }
  // An abort() during the call above found nothing to abort.
  if (comm != nullptr && aborted_.load() && comm_.exchange(nullptr) != nullptr) {
    api.comm_abort(comm);
    return ended();
  }
  return checked("ncclCommInitRankConfig", result);
}

Outcome Communicator::enqueue(const DeviceOperation& operation, void* scratch,
                              cuda::Stream stream) {
  nccl::api::RedOp op = nccl_op(operation.op.kind());
  const bool premultiplied = operation.op.kind() == ReduceOp::kPremulSum;
  if (premultiplied) {
    if (auto failure = reduce_op(operation, op)) return failure;
  }
  auto failure = checked_call(call_name(operation.kind), [&](nccl::api::Comm comm) {
    return start(operation, op, scratch, comm, stream);
  });
  if (failure || !premultiplied) return failure;
  return checked_call("ncclRedOpDestroy", [&](nccl::api::Comm comm) {
    return library_->nccl().red_op_destroy(op, comm);
  });
}

Outcome Communicator::reduce_op(const DeviceOperation& operation, nccl::api::RedOp& op) {
  const nccl::api::Api& api = library_->nccl();
  const DType type = operation.in.type;
  Factor factor = factor_for(type, operation.op.factor());
  return checked_call("ncclRedOpCreatePreMulSum", [&](nccl::api::Comm comm) {
    return api.red_op_create_premul_sum(&op, &factor, nccl_type(type),
                                        nccl::api::kScalarHostImmediate, comm);
  });
}

nccl::api::Result Communicator::start(const DeviceOperation& operation, nccl::api::RedOp op,
                                      void* scratch, nccl::api::Comm comm,
                                      cuda::Stream stream) const {
  const nccl::api::Api& api = library_->nccl();
  const Buffer& in = operation.in;
  const Buffer& out = operation.out;
  const int type = nccl_type(in.type);
  switch (operation.kind) {
    case DeviceOpKind::kAllReduce:
      return api.all_reduce(in.data, out.data, in.count, type, op, comm, stream);
    case DeviceOpKind::kBroadcast:
      return api.broadcast(in.data, out.data, in.count, type, operation.root, comm, stream);
    case DeviceOpKind::kReduce:
      return api.reduce(in.data, out.data, in.count, type, op, operation.root, comm, stream);
    case DeviceOpKind::kAllGather:
      return api.all_gather(in.data, out.data, in.count, type, comm, stream);
    case DeviceOpKind::kReduceScatter:
      return api.reduce_scatter(in.data, out.data, out.count, type, op, comm, stream);
    case DeviceOpKind::kBarrier:
      return api.all_reduce(scratch, scratch, 1, nccl::api::kInt32, nccl::api::kSum, comm, stream);
    default:
      return start_group(operation, op, comm, stream);
  }
}

// Calls between ncclGroupStart and ncclGroupEnd run together, as one kernel.
nccl::api::Result Communicator::start_group(const DeviceOperation& operation, nccl::api::RedOp op,
                                            nccl::api::Comm comm, cuda::Stream stream) const {
  const nccl::api::Api& api = library_->nccl();
  const nccl::api::Result started = api.group_start();
  if (started != nccl::api::kSuccess) return started;
  nccl::api::Result first = nccl::api::kSuccess;
  const auto note = [&first](nccl::api::Result result) {
    if (first == nccl::api::kSuccess) first = result;
  };
  for (const Buffer& part : operation.parts) {
    note(api.all_reduce(part.data, part.data, part.count, nccl_type(part.type), op, comm, stream));
  }
  for (const Transfer& transfer : operation.transfers) {
    const Buffer& buffer = transfer.buffer;
    const int type = nccl_type(buffer.type);
    note(transfer.direction == Transfer::Direction::kSend
             ? api.send(buffer.data, buffer.count, type, transfer.peer, comm, stream)
             : api.recv(buffer.data, buffer.count, type, transfer.peer, comm, stream));
  }
  // Close the group even after an error: it belongs to this thread and would stay open.
  const nccl::api::Result ended = api.group_end();
  return first != nccl::api::kSuccess ? first : ended;
}

Outcome Communicator::close() {
  const nccl::api::Api& api = library_->nccl();
  auto failure = checked_call("ncclCommFinalize",
                              [&](nccl::api::Comm comm) { return api.comm_finalize(comm); });
  if (failure) return failure;
  const std::lock_guard lock(mutex_);
  if (aborted_.load()) return ended();
  const nccl::api::Comm comm = comm_.exchange(nullptr);
  if (comm == nullptr) return ended();
  return checked("ncclCommDestroy", api.comm_destroy(comm));
}

Outcome Communicator::async_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  const nccl::api::Comm comm = comm_.load();
  if (comm == nullptr || aborted_.load()) return std::nullopt;
  nccl::api::Result state = nccl::api::kSuccess;
  const nccl::api::Result asked = library_->nccl().comm_get_async_error(comm, &state);
  if (asked != nccl::api::kSuccess) state = asked;
  if (state == nccl::api::kInProgress) return std::nullopt;
  return checked("asynchronous error", state);
}

void Communicator::abort() {
  if (aborted_.exchange(true)) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  nccl::Backoff backoff(std::chrono::milliseconds(5));
  for (const TimePoint limit = Clock::now() + kCallGrace; !lock && Clock::now() < limit;) {
    backoff.pause();
    (void)lock.try_lock();
  }
  const nccl::api::Comm comm = comm_.exchange(nullptr);
  // Nobody enters a call any more, so NCCL's own call need not hold the mutex.
  if (lock) lock.unlock();
  if (comm != nullptr) library_->nccl().comm_abort(comm);
}

}  // namespace ddp::nccl
