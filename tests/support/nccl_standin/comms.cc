#include <chrono>
#include <cstring>

#include "tests/support/nccl_standin/state.h"

// NCCL's part: communicators, groups of calls, and the enqueuing of kernels in streams.
namespace ddp::standin {
namespace {

// One call on a communicator. Records a violation if NCCL does not allow it.
class Call {
 public:
  explicit Call(nccl::api::Comm handle) : lock_(state().mutex) {
    State& all = state();
    auto* comm = reinterpret_cast<Comm*>(handle);
    if (all.comms.count(comm) == 0 || !comm->live) {
      all.violation("a communicator is used after its end");
      return;
    }
    if (comm->in_call) all.violation("two calls at a time on one communicator");
    comm_ = comm;
    comm_->in_call = true;
    // Leaves time for a concurrent call of another thread.
    lock_.unlock();
    std::this_thread::yield();
    lock_.lock();
  }
  ~Call() {
    if (comm_ != nullptr) comm_->in_call = false;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Comm* comm() { return comm_; }
  Lock& lock() { return lock_; }

 private:
  Lock lock_;
  Comm* comm_ = nullptr;
};

// A kernel that waits to be enqueued in its stream.
struct Pending {
  Comm* comm = nullptr;
  Stream* stream = nullptr;
  CollectiveCall collective;
  PeerTransfer transfer;
  bool is_transfer = false;
};

thread_local int group_depth = 0;
thread_local std::vector<Pending> group;

void expect_live(const Comm& comm) {
  if (!comm.live) state().violation("a graph is launched after the end of its communicator");
}

// Under the lock.
void put_into_streams(Comm& comm, const std::vector<Pending>& calls) {
  std::vector<PeerTransfer> transfers;
  for (const Pending& call : calls) {
    if (call.is_transfer) {
      transfers.push_back(call.transfer);
      continue;
    }
    push_step(*call.stream, [&comm, collective = call.collective]() -> Task {
      expect_live(comm);
      const std::uint64_t number = comm.collectives++;
      return [&comm, number, collective](Lock& lock) {
        run_collective(lock, comm, number, collective);
      };
    });
  }
  if (transfers.empty()) return;
  push_step(*calls.front().stream, [&comm, transfers]() -> Task {
    expect_live(comm);
    return [&comm, transfers](Lock& lock) { run_transfers(lock, comm, transfers); };
  });
}

// As NCCL connects ranks in an operation, it holds the call for delay_launch().
nccl::api::Result launch(Lock& lock, Comm& comm, const std::vector<Pending>& calls) {
  State& all = state();
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(all.launch_delay_ms);
  all.changed.wait_until(lock, until, [&] { return comm.aborted || all.launch_delay_ms == 0; });
  if (comm.aborted) return nccl::api::kSystemError;
  put_into_streams(comm, calls);
  return nccl::api::kSuccess;
}

nccl::api::Result start(Pending call, nccl::api::Comm handle, cuda::Stream stream) {
  Call entered(handle);
  Comm* comm = entered.comm();
  if (comm == nullptr) return nccl::api::kInvalidArgument;
  call.comm = comm;
  call.stream = stream_of(stream);
  if (call.stream == nullptr || call.stream->device != comm->device)
    return nccl::api::kInvalidArgument;
  if (call.collective.op >= 16 && comm->factors.count(call.collective.op) == 0) {
    state().violation("a reduction that does not exist is used");
    return nccl::api::kInvalidArgument;
  }
  if (call.collective.op >= 16) call.collective.factor = comm->factors[call.collective.op];
  if (group_depth > 0) {
    group.push_back(call);
    return nccl::api::kSuccess;
  }
  return launch(entered.lock(), *comm, {call});
}

Pending collective(char kind, const void* in, void* out, std::size_t count, int type, int op,
                   int root) {
  Pending call;
  call.collective = {kind, in, out, count, type, op, root, 1.0};
  return call;
}

Pending transfer(bool sends, void* data, std::size_t count, int type, int peer) {
  Pending call;
  call.is_transfer = true;
  call.transfer = {sends, peer, data, count * bytes_of(type)};
  return call;
}

bool connected(const Comm& comm) {
  return comm.world->arrived.size() == static_cast<std::size_t>(comm.world->size) &&
         state().hung_inits.count(comm.rank) == 0;
}

nccl::api::Result make_comm(nccl::api::Comm* handle, int size, const nccl::api::UniqueId& id,
                            int rank) {
  State& all = state();
  Lock lock(all.mutex);
  const auto found = all.worlds.find(std::string(id.bytes, sizeof(id.bytes)));
  if (found == all.worlds.end()) return nccl::api::kInvalidArgument;
  const auto world = found->second;
  const bool fits = world->size == 0 || world->size == size;
  if (!fits || rank < 0 || rank >= size || !world->arrived.insert(rank).second) {
    return nccl::api::kInvalidArgument;
  }
  if (!world->devices.insert(current_device()).second) return nccl::api::kInvalidUsage;
  world->size = size;
  auto* comm = new Comm;
  comm->world = world;
  comm->rank = rank;
  comm->device = current_device();
  all.comms.insert(comm);
  all.changed.notify_all();
  const int released = all.released;
  all.changed.wait(lock, [&] { return connected(*comm) || all.released != released; });
  if (!connected(*comm)) {
    comm->live = false;
    return nccl::api::kSystemError;
  }
  *handle = reinterpret_cast<nccl::api::Comm>(comm);
  return nccl::api::kSuccess;
}

}  // namespace
}  // namespace ddp::standin

using ddp::nccl::api::Comm;
using ddp::nccl::api::Result;
using ddp::standin::Call;
using ddp::standin::collective;
using ddp::standin::Lock;
using ddp::standin::start;
using ddp::standin::state;
namespace cuda = ddp::cuda;
namespace nccl = ddp::nccl;
namespace standin = ddp::standin;

STANDIN_API Result ncclGetVersion(int* version) {
#ifdef STANDIN_OLD
  *version = 21212;
#else
  *version = 22809;
#endif
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclGetUniqueId(nccl::api::UniqueId* id) {
  const Lock lock(state().mutex);
  if (state().unique_id_result != 0) return state().unique_id_result;
  std::memset(id->bytes, 0, sizeof(id->bytes));
  const std::uint64_t number = ++state().ids;
  std::memcpy(id->bytes, &number, sizeof(number));
  state().worlds[std::string(id->bytes, sizeof(id->bytes))] = std::make_shared<standin::World>();
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclCommInitRank(Comm* comm, int size, nccl::api::UniqueId id, int rank) {
  return standin::make_comm(comm, size, id, rank);
}

#ifndef STANDIN_OLD
STANDIN_API Result ncclCommInitRankConfig(Comm* comm, int size, nccl::api::UniqueId id, int rank,
                                          nccl::api::Config* config) {
  if (config->magic != 0xcafebeef || config->version < 21400 || config->blocking != 1)
    return nccl::api::kInvalidArgument;
  return standin::make_comm(comm, size, id, rank);
}

STANDIN_API Result ncclCommFinalize(Comm handle) {
  Call call(handle);
  if (call.comm() == nullptr) return nccl::api::kInvalidArgument;
  const standin::Comm& comm = *call.comm();
  comm.world->finalized.insert(comm.rank);
  state().changed.notify_all();
  state().changed.wait(call.lock(), [&] {
    return comm.aborted ||
           comm.world->finalized.size() == static_cast<std::size_t>(comm.world->size);
  });
  return comm.aborted ? nccl::api::kSystemError : nccl::api::kSuccess;
}

STANDIN_API const char* ncclGetLastError(Comm /*comm*/) { return "last words of the stand-in\n"; }
#endif

STANDIN_API Result ncclCommGetAsyncError(Comm handle, Result* result) {
  Call call(handle);
  if (call.comm() == nullptr) return nccl::api::kInvalidArgument;
  const auto failed = state().failed_ranks.find(call.comm()->rank);
  *result = failed != state().failed_ranks.end() ? failed->second : nccl::api::kSuccess;
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclCommAbort(Comm handle) {
  Lock lock(state().mutex);
  auto* comm = reinterpret_cast<standin::Comm*>(handle);
  if (state().comms.count(comm) == 0 || !comm->live) {
    state().violation("a communicator is aborted after its end");
    return nccl::api::kInvalidArgument;
  }
  comm->live = false;
  const int released = state().released;
  state().changed.wait(lock, [&] {
    return state().hung_aborts.count(comm->rank) == 0 || state().released != released;
  });
  comm->aborted = true;
  state().changed.notify_all();
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclCommDestroy(Comm handle) {
  Call call(handle);
  if (call.comm() == nullptr) return nccl::api::kInvalidArgument;
  call.comm()->live = false;
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op,
                                 Comm comm, cuda::Stream stream) {
  return start(collective('a', in, out, count, type, op, -1), comm, stream);
}

STANDIN_API Result ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root,
                                 Comm comm, cuda::Stream stream) {
  return start(collective('b', in, out, count, type, 0, root), comm, stream);
}

STANDIN_API Result ncclReduce(const void* in, void* out, std::size_t count, int type, int op,
                              int root, Comm comm, cuda::Stream stream) {
  return start(collective('r', in, out, count, type, op, root), comm, stream);
}

STANDIN_API Result ncclAllGather(const void* in, void* out, std::size_t count, int type, Comm comm,
                                 cuda::Stream stream) {
  return start(collective('g', in, out, count, type, 0, -1), comm, stream);
}

STANDIN_API Result ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op,
                                     Comm comm, cuda::Stream stream) {
  return start(collective('s', in, out, count, type, op, -1), comm, stream);
}

STANDIN_API Result ncclSend(const void* in, std::size_t count, int type, int peer, Comm comm,
                            cuda::Stream stream) {
  return start(standin::transfer(true, const_cast<void*>(in), count, type, peer), comm, stream);
}

STANDIN_API Result ncclRecv(void* out, std::size_t count, int type, int peer, Comm comm,
                            cuda::Stream stream) {
  return start(standin::transfer(false, out, count, type, peer), comm, stream);
}

STANDIN_API Result ncclGroupStart() {
  ++standin::group_depth;
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclGroupEnd() {
  if (--standin::group_depth > 0) return nccl::api::kSuccess;
  const auto calls = std::move(standin::group);
  standin::group.clear();
  if (calls.empty()) return nccl::api::kSuccess;
  Lock lock(state().mutex);
  return standin::launch(lock, *calls.front().comm, calls);
}

STANDIN_API Result ncclRedOpCreatePreMulSum(int* op, void* factor, int type, int residence,
                                            Comm handle) {
  Call call(handle);
  if (call.comm() == nullptr || residence != nccl::api::kScalarHostImmediate) {
    return nccl::api::kInvalidArgument;
  }
  *op = call.comm()->next_op++;
  call.comm()->factors[*op] = standin::factor_of(factor, type);
  return nccl::api::kSuccess;
}

STANDIN_API Result ncclRedOpDestroy(int op, Comm handle) {
  Call call(handle);
  if (call.comm() == nullptr || call.comm()->factors.erase(op) == 0)
    return nccl::api::kInvalidArgument;
  return nccl::api::kSuccess;
}

STANDIN_API const char* ncclGetErrorString(Result result) {
  switch (result) {
    case nccl::api::kRemoteError:
      return "remote process exited or there was a network error";
    case nccl::api::kInvalidUsage:
      return "invalid usage";
    case nccl::api::kSystemError:
      return "unhandled system error";
    default:
      return "a stand-in's NCCL error";
  }
}
