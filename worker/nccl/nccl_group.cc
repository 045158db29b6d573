#include "worker/nccl/nccl_group.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/nccl/engine.h"
#include "worker/nccl/failure_hub.h"
#include "worker/nccl/failure_text.h"
#include "worker/nccl/rendezvous.h"

namespace ddp {
namespace {

constexpr std::chrono::hours kLongestTimeout{24 * 365};
// How often a rank that connects looks whether another one has failed.
constexpr Duration kFailureLook{100};

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

[[noreturn]] void throw_failure(const Failure& failure) {
  throw CollectiveError(failure.text, failure.code, failure.suspect);
}

bool check_wanted(const NcclGroupOptions& options) {
  const char* value = std::getenv("DDP_NCCL_CHECK");
  return options.check || (value != nullptr && std::strcmp(value, "1") == 0);
}

void require_options(const NcclGroupOptions& options) {
  require(options.size > 0 && options.rank >= 0 && options.rank < options.size,
          fmt::format("NCCL group '{}': rank {} of {}", options.name, options.rank, options.size));
  require(!options.priority_channel,
          fmt::format("NCCL group '{}': priority_channel is for host groups", options.name));
  require(!check_wanted(options) || options.check_group != nullptr,
          fmt::format("NCCL group '{}': DDP_NCCL_CHECK=1 needs NcclGroupOptions::check_group, a "
                      "host group that is used for nothing else",
                      options.name));
  require(!check_wanted(options) || (options.check_group->size() == options.size &&
                                     options.check_group->rank() == options.rank),
          fmt::format("NCCL group '{}': check_group is not of the same ranks", options.name));
}

void require_data(DeviceOpKind kind, const Buffer& buffer) {
  require(buffer.data != nullptr || buffer.count == 0,
          fmt::format("{}: the buffer of {} elements has no address", name_of(kind), buffer.count));
}

void require_same_type(DeviceOpKind kind, const Buffer& in, const Buffer& out) {
  require(in.type == out.type, fmt::format("{}: input of {} and output of {}", name_of(kind),
                                           name_of(in.type), name_of(out.type)));
}

void require_count(DeviceOpKind kind, const char* what, std::size_t got, std::size_t needed) {
  require(got == needed,
          fmt::format("{}: {} of {} elements, {} are needed", name_of(kind), what, got, needed));
}

std::byte* address(const Buffer& buffer, std::size_t element) {
  return static_cast<std::byte*>(buffer.data) + element * dtype_bytes(buffer.type);
}

std::size_t sum_of(std::span<const std::size_t> counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

}  // namespace

std::shared_ptr<NcclGroup> NcclGroup::make(std::shared_ptr<const NcclLibrary> library,
                                           std::shared_ptr<Store> store,
                                           const NcclGroupOptions& options) {
  require_options(options);
  auto hub = std::make_shared<FailureHub>(options.on_abort);
  std::shared_ptr<NcclGroup> group(new NcclGroup(std::move(library), std::move(store), options,
                                                 std::move(hub), std::make_shared<std::mutex>()));
  group->connect();
  if (options.abort_store) {
    group->hub_->set_relay(std::make_unique<AbortRelay>(
        options.abort_store, group->rendezvous_->key("aborted"), options.abort_interval,
        [weak = std::weak_ptr(group->hub_)](const Failure& failure) {
          if (const auto told = weak.lock()) told->fail_all(failure);
        }));
  }
  return group;
}

NcclGroup::NcclGroup(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Store> store,
                     NcclGroupOptions options, std::shared_ptr<FailureHub> hub,
                     std::shared_ptr<std::mutex> store_mutex)
    : library_(std::move(library)),
      store_(std::move(store)),
      options_(std::move(options)),
      hub_(std::move(hub)),
      rendezvous_(std::make_unique<NcclRendezvous>(store_, options_.round, options_.name,
                                                   options_.rank, options_.size)),
      store_mutex_(std::move(store_mutex)) {}

NcclGroup::~NcclGroup() {
  if (engine_) engine_->close();
}

void NcclGroup::connect() {
  const auto timeout = std::min<Duration>(options_.connect_timeout, kLongestTimeout);
  const TimePoint deadline = Clock::now() + timeout;
  nccl::UniqueId id{};
  if (auto failure = rendezvous_->exchange_id(*library_, deadline, timeout, id)) {
    fail_connecting(std::move(*failure), true);
  }
  NcclEngineOptions engine;
  engine.rank = options_.rank;
  engine.size = options_.size;
  engine.device = options_.device;
  engine.high_priority = options_.high_priority;
  engine.abort_grace = options_.abort_grace;
  engine.close_timeout = options_.close_timeout;
  if (check_wanted(options_) && options_.check_group) {
    engine.check = std::make_shared<RecordCheck>(options_.check_group);
  }
  // Until it is connected, the caller gets the failure and the others hear of it through the store.
  const auto connected = std::make_shared<std::atomic<bool>>(false);
  engine.on_failure = [hub = hub_, connected](const Failure& failure) {
    if (connected->load()) hub->failed(failure);
  };
  engine_ = NcclEngine::start(library_, id, std::move(engine));
  for (;;) {
    const auto readiness = engine_->wait_ready(std::min(deadline, Clock::now() + kFailureLook));
    if (readiness == NcclEngine::Readiness::kReady) break;
    if (readiness == NcclEngine::Readiness::kFailed) {
      Failure failure = *engine_->failure();
      failure.text = fmt::format("NCCL group '{}' of round {}: {}", options_.name, options_.round,
                                 failure.text);
      fail_connecting(std::move(failure), true);
    }
    if (auto told = rendezvous_->told_failure()) fail_connecting(std::move(*told), false);
    if (Clock::now() >= deadline) fail_connecting(rendezvous_->not_connected(timeout), true);
  }
  hub_->add(engine_);
  connected->store(true);
}

void NcclGroup::fail_connecting(Failure failure, bool tell) {
  if (tell) rendezvous_->tell(failure);
  if (engine_) engine_->fail(failure, NcclEngine::Tell::kNo);
  throw_failure(failure);
}

// ---- Operations.

DeviceOperation NcclGroup::operation_of(DeviceOpKind kind, Buffer in, Buffer out) const {
  DeviceOperation operation;
  operation.record.kind = kind;
  operation.record.type = static_cast<std::uint32_t>(in.type);
  operation.record.count = in.count;
  operation.in = in;
  operation.out = out;
  return operation;
}

void NcclGroup::check_reduction(DeviceOpKind kind, DType type, const ReduceOp& op) const {
  const bool bits =
      op.kind() == ReduceOp::kBand || op.kind() == ReduceOp::kBor || op.kind() == ReduceOp::kBxor;
  require(!bits, fmt::format("{}: NCCL has no {}; use a host group, or min and max of single bits",
                             name_of(kind), name_of(op.kind())));
  require(valid(type, op.kind()), fmt::format("{}: {} of {} has no exact value; use a sum",
                                              name_of(kind), name_of(op.kind()), name_of(type)));
}

void NcclGroup::check_root(DeviceOpKind kind, Rank root) const {
  require(root >= 0 && root < options_.size,
          fmt::format("{}: rank {} is not in 0..{}", name_of(kind), root, options_.size - 1));
}

WorkPtr NcclGroup::all_reduce(Buffer in_out, ReduceOp op, OpOptions options) {
  const auto kind = DeviceOpKind::kAllReduce;
  require_data(kind, in_out);
  check_reduction(kind, in_out.type, op);
  DeviceOperation operation = operation_of(kind, in_out, in_out);
  operation.op = op;
  operation.record.op = op.kind();
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                                        OpOptions options) {
  const auto kind = DeviceOpKind::kAllReduceCoalesced;
  require(!in_out.empty(), "all_reduce_coalesced: no buffers");
  DeviceOperation operation = operation_of(kind, in_out.front(), in_out.front());
  operation.record.count = 0;
  for (const Buffer& buffer : in_out) {
    require_data(kind, buffer);
    require_same_type(kind, in_out.front(), buffer);
    operation.record.count += buffer.count;
    if (buffer.count > 0) operation.parts.push_back(buffer);
  }
  check_reduction(kind, in_out.front().type, op);
  operation.op = op;
  operation.record.op = op.kind();
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::broadcast(Buffer in_out, Rank root, OpOptions options) {
  const auto kind = DeviceOpKind::kBroadcast;
  require_data(kind, in_out);
  check_root(kind, root);
  DeviceOperation operation = operation_of(kind, in_out, in_out);
  operation.record.root = root;
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options) {
  const auto kind = DeviceOpKind::kReduce;
  require_data(kind, in_out);
  check_root(kind, root);
  check_reduction(kind, in_out.type, op);
  DeviceOperation operation = operation_of(kind, in_out, in_out);
  operation.op = op;
  operation.record.op = op.kind();
  operation.record.root = root;
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::all_gather(Buffer in, Buffer out, OpOptions options) {
  const auto kind = DeviceOpKind::kAllGather;
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  require_count(kind, "output", out.count, in.count * static_cast<std::size_t>(options_.size));
  return issue(operation_of(kind, in, out), std::move(options));
}

WorkPtr NcclGroup::reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options) {
  const auto kind = DeviceOpKind::kReduceScatter;
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  require_count(kind, "input", in.count, out.count * static_cast<std::size_t>(options_.size));
  check_reduction(kind, in.type, op);
  DeviceOperation operation = operation_of(kind, in, out);
  operation.op = op;
  operation.record.op = op.kind();
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::barrier(OpOptions options) {
  return issue(operation_of(DeviceOpKind::kBarrier, {nullptr, 0, DType::kU8}, {}),
               std::move(options));
}

// ---- Operations that consist of sends and receives.

void NcclGroup::add_transfer(DeviceOperation& operation, Transfer::Direction direction, Rank peer,
                             const Buffer& whole, std::size_t begin, std::size_t count) const {
  if (count == 0) return;  // The other side leaves it out, too.
  operation.transfers.push_back({direction, peer, {address(whole, begin), count, whole.type}});
}

// What a rank gives itself; NCCL copies it if both directions are in one group.
void NcclGroup::add_own_part(DeviceOperation& operation, const Buffer& in, std::size_t in_begin,
                             const Buffer& out, std::size_t out_begin, std::size_t count) const {
  if (address(in, in_begin) == address(out, out_begin)) return;
  add_transfer(operation, Transfer::Direction::kSend, options_.rank, in, in_begin, count);
  add_transfer(operation, Transfer::Direction::kRecv, options_.rank, out, out_begin, count);
}

WorkPtr NcclGroup::all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                               OpOptions options) {
  const auto kind = DeviceOpKind::kAllGatherV;
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  require(counts.size() == static_cast<std::size_t>(options_.size),
          fmt::format("all_gatherv: {} counts for {} ranks", counts.size(), options_.size));
  require_count(kind, "input", in.count, counts[static_cast<std::size_t>(options_.rank)]);
  require_count(kind, "output", out.count, sum_of(counts));
  DeviceOperation operation = operation_of(kind, in, out);
  operation.record.count = out.count;
  std::size_t begin = 0;
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t count = counts[static_cast<std::size_t>(peer)];
    if (peer == options_.rank) {
      add_own_part(operation, in, 0, out, begin, count);
    } else {
      add_transfer(operation, Transfer::Direction::kSend, peer, in, 0, in.count);
      add_transfer(operation, Transfer::Direction::kRecv, peer, out, begin, count);
    }
    begin += count;
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::gather(Buffer in, Buffer out, Rank root, OpOptions options) {
  const auto kind = DeviceOpKind::kGather;
  require_data(kind, in);
  check_root(kind, root);
  DeviceOperation operation = operation_of(kind, in, out);
  operation.record.root = root;
  if (options_.rank != root) {
    add_transfer(operation, Transfer::Direction::kSend, root, in, 0, in.count);
    return issue(std::move(operation), std::move(options));
  }
  require_data(kind, out);
  require_same_type(kind, in, out);
  require_count(kind, "output", out.count, in.count * static_cast<std::size_t>(options_.size));
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t begin = static_cast<std::size_t>(peer) * in.count;
    if (peer == root) {
      add_own_part(operation, in, 0, out, begin, in.count);
    } else {
      add_transfer(operation, Transfer::Direction::kRecv, peer, out, begin, in.count);
    }
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::scatter(Buffer in, Buffer out, Rank root, OpOptions options) {
  const auto kind = DeviceOpKind::kScatter;
  require_data(kind, out);
  check_root(kind, root);
  DeviceOperation operation = operation_of(kind, out, out);  // Every rank knows its output.
  operation.record.root = root;
  if (options_.rank != root) {
    add_transfer(operation, Transfer::Direction::kRecv, root, out, 0, out.count);
    return issue(std::move(operation), std::move(options));
  }
  require_data(kind, in);
  require_same_type(kind, in, out);
  require_count(kind, "input", in.count, out.count * static_cast<std::size_t>(options_.size));
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t begin = static_cast<std::size_t>(peer) * out.count;
    if (peer == root) {
      add_own_part(operation, in, begin, out, 0, out.count);
    } else {
      add_transfer(operation, Transfer::Direction::kSend, peer, in, begin, out.count);
    }
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::all_to_all(Buffer in, Buffer out, OpOptions options) {
  const auto kind = DeviceOpKind::kAllToAll;
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  require_count(kind, "output", out.count, in.count);
  const auto size = static_cast<std::size_t>(options_.size);
  require(in.count % size == 0, fmt::format("all_to_all: {} elements cannot be shared by {} ranks",
                                            in.count, options_.size));
  require(in.data != out.data || in.count == 0, "all_to_all: input and output are the same memory");
  DeviceOperation operation = operation_of(kind, in, out);
  const std::size_t part = in.count / size;
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t begin = static_cast<std::size_t>(peer) * part;
    add_transfer(operation, Transfer::Direction::kSend, peer, in, begin, part);
    add_transfer(operation, Transfer::Direction::kRecv, peer, out, begin, part);
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                               std::span<const std::size_t> receive_counts, OpOptions options) {
  const auto kind = DeviceOpKind::kAllToAllV;
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  const auto size = static_cast<std::size_t>(options_.size);
  require(send_counts.size() == size && receive_counts.size() == size,
          fmt::format("all_to_allv: {} and {} counts for {} ranks", send_counts.size(),
                      receive_counts.size(), size));
  require_count(kind, "input", in.count, sum_of(send_counts));
  require_count(kind, "output", out.count, sum_of(receive_counts));
  const auto own = static_cast<std::size_t>(options_.rank);
  require(send_counts[own] == receive_counts[own],
          fmt::format("all_to_allv: rank {} sends itself {} elements and receives {}",
                      options_.rank, send_counts[own], receive_counts[own]));
  require(in.data != out.data || in.count == 0,
          "all_to_allv: input and output are the same memory");
  DeviceOperation operation = operation_of(kind, in, out);
  operation.record.count = 0;  // Ranks may differ.
  std::size_t in_begin = 0;
  std::size_t out_begin = 0;
  for (std::size_t peer = 0; peer < size; ++peer) {
    const Rank rank = static_cast<Rank>(peer);
    add_transfer(operation, Transfer::Direction::kSend, rank, in, in_begin, send_counts[peer]);
    add_transfer(operation, Transfer::Direction::kRecv, rank, out, out_begin, receive_counts[peer]);
    in_begin += send_counts[peer];
    out_begin += receive_counts[peer];
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::send(Buffer buffer, Rank to, std::uint32_t /*tag*/, OpOptions options) {
  const auto kind = DeviceOpKind::kSend;
  require_data(kind, buffer);
  check_root(kind, to);
  require(to != options_.rank, "send: to this rank itself; use batch() with both directions");
  DeviceOperation operation = operation_of(kind, buffer, buffer);
  operation.record.root = to;
  add_transfer(operation, Transfer::Direction::kSend, to, buffer, 0, buffer.count);
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::recv(Buffer buffer, Rank from, std::uint32_t /*tag*/, OpOptions options) {
  const auto kind = DeviceOpKind::kRecv;
  require_data(kind, buffer);
  check_root(kind, from);
  require(from != options_.rank, "recv: from this rank itself; use batch() with both directions");
  DeviceOperation operation = operation_of(kind, buffer, buffer);
  operation.record.root = from;
  add_transfer(operation, Transfer::Direction::kRecv, from, buffer, 0, buffer.count);
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::batch(std::vector<Transfer> transfers, OpOptions options) {
  const auto kind = DeviceOpKind::kBatch;
  DeviceOperation operation = operation_of(kind, {nullptr, 0, DType::kU8}, {});
  for (const Transfer& transfer : transfers) {
    require_data(kind, transfer.buffer);
    check_root(kind, transfer.peer);
    add_transfer(operation, transfer.direction, transfer.peer, transfer.buffer, 0,
                 transfer.buffer.count);
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::issue(DeviceOperation operation, OpOptions options) {
  const char* kind = name_of(operation.record.kind);
  require(options.timeout.count() >= 0,
          fmt::format("{}: a timeout of {} ms", kind, options.timeout.count()));
  require(options.priority <= 0, fmt::format("{}: this group has no priority channel", kind));
  operation.timeout = std::min<Duration>(
      options.timeout.count() > 0 ? options.timeout : options_.timeout, kLongestTimeout);
  operation.deadline = Clock::now() + operation.timeout;
  operation.tag = std::move(options.tag);
  const cuda::Stream stream = options_.current_stream ? options_.current_stream() : nullptr;
  WorkPtr work = engine_->issue(std::move(operation), stream);
  if (options.synchronous) work->wait();
  return work;
}

// ---- The group as a whole.

std::shared_ptr<std::byte> NcclGroup::allocate(std::size_t bytes) {
  const DeviceGuard guard(library_->cuda(), options_.device);
  void* memory = nullptr;
  if (library_->cuda().malloc(&memory, std::max<std::size_t>(bytes, 1)) != cuda::kSuccess) {
    return nullptr;
  }
  return {static_cast<std::byte*>(memory),
          [library = library_](std::byte* end) { library->cuda().free(end); }};
}

void NcclGroup::throw_if_failed() const {
  if (const auto failure = engine_->failure()) throw_failure(*failure);
}

void NcclGroup::monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  require(timeout.count() >= 0,
          fmt::format("monitored_barrier: a timeout of {} ms", timeout.count()));
  throw_if_failed();
  const std::lock_guard lock(*store_mutex_);
  const auto limit =
      std::min<Duration>(timeout.count() > 0 ? timeout : options_.timeout, kLongestTimeout);
  auto failure = rendezvous_->monitored_barrier(fmt::format("monitored_barrier{}", calls_++), limit,
                                                wait_all_ranks);
  if (!failure) return;
  const auto tell = failure->told ? NcclEngine::Tell::kNo : NcclEngine::Tell::kYes;
  if (failure->told) hub_->fail_all(*failure);
  engine_->fail(*failure, tell);
  throw_if_failed();
}

std::shared_ptr<ProcessGroup> NcclGroup::new_group(std::span<const Rank> ranks) {
  require(!ranks.empty(), "new_group: no ranks");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    require(ranks[i] >= 0 && ranks[i] < options_.size,
            fmt::format("new_group: rank {} is not in 0..{}", ranks[i], options_.size - 1));
    require(i == 0 || ranks[i] > ranks[i - 1],
            "new_group: the ranks are not in ascending order, each once");
  }
  throw_if_failed();
  const std::lock_guard lock(*store_mutex_);
  return sub_group(fmt::format("group{}", calls_++), {ranks.begin(), ranks.end()});
}

std::shared_ptr<ProcessGroup> NcclGroup::split(int color, int key) {
  throw_if_failed();
  const std::lock_guard lock(*store_mutex_);
  const std::string call = fmt::format("split{}", calls_++);
  const auto all = rendezvous_->gather(call, fmt::format("{} {}", color, key),
                                       Clock::now() + options_.connect_timeout);
  if (!all) throw CollectiveError(all.error().message, all.error().code, -1);
  std::vector<std::pair<int, Rank>> members;  // Key and rank, of this color.
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    int its_color = 0;
    int its_key = 0;
    if (std::sscanf((*all)[rank].c_str(), "%d %d", &its_color, &its_key) != 2) {
      throw CollectiveError(fmt::format("split: rank {} gave '{}'", rank, (*all)[rank]),
                            Errc::kProtocol, static_cast<Rank>(rank));
    }
    if (its_color == color) members.emplace_back(its_key, static_cast<Rank>(rank));
  }
  if (color < 0) return nullptr;
  std::sort(members.begin(), members.end());
  std::vector<Rank> ranks;
  for (const auto& [unused, rank] : members) ranks.push_back(rank);
  return sub_group(fmt::format("{}.{}", call, color), ranks);
}

std::shared_ptr<NcclGroup> NcclGroup::sub_group(const std::string& call,
                                                const std::vector<Rank>& members) {
  NcclGroupOptions options = options_;
  options.check_group = nullptr;
  const auto own = std::find(members.begin(), members.end(), options_.rank);
  if (own == members.end()) return nullptr;
  options.rank = static_cast<Rank>(own - members.begin());
  options.size = static_cast<int>(members.size());
  options.name = fmt::format("{}/{}", options_.name, call);
  std::shared_ptr<NcclGroup> group(new NcclGroup(library_, store_, options, hub_, store_mutex_));
  group->connect();
  return group;
}

void NcclGroup::abort(const std::string& reason) {
  engine_->fail({Errc::kAborted, options_.rank,
                 fmt::format("rank {} aborted the group: {}", options_.rank, reason)},
                NcclEngine::Tell::kYes);
}

void NcclGroup::abort_from_peer(const Failure& failure) {
  Failure told = failure;
  told.told = true;
  engine_->fail(told, NcclEngine::Tell::kNo);
  hub_->fail_all(told);
}

}  // namespace ddp
