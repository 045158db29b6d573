#include <algorithm>
#include <chrono>

#include "tests/support/nccl_standin/state.h"
#include "worker/collectives/half.h"

// Kernels. Every rank computes its own output from the inputs of all ranks, in rank order.
namespace ddp::standin {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

template <typename T>
T load(const void* data, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
T combine(int op, T a, T b) {
  switch (op) {
    case nccl::api::kProd:
      return static_cast<T>(a * b);
    case nccl::api::kMax:
      return std::max(a, b);
    case nccl::api::kMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

// Stored is the type in memory, T the type of the computation.
template <typename T, typename Stored, typename Widen, typename Narrow>
void reduce_elements(const std::map<int, CollectiveCall>& calls, std::size_t begin,
                     std::size_t count, char* out, Widen widen, Narrow narrow) {
  const int op = calls.begin()->second.op;
  for (std::size_t i = 0; i < count; ++i) {
    T sum{};
    for (const auto& [rank, call] : calls) {
      T value = widen(load<Stored>(call.in, begin + i));
      if (op >= 16) value = static_cast<T>(value * static_cast<T>(call.factor));
      sum = rank == 0 ? value : combine(op, sum, value);
    }
    if (op == nccl::api::kAvg) sum = static_cast<T>(sum / static_cast<T>(calls.size()));
    const Stored stored = narrow(sum);
    std::memcpy(out + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <typename T>
void reduce_plain(const std::map<int, CollectiveCall>& calls, std::size_t begin, std::size_t count,
                  char* out) {
  const auto same = [](T value) { return value; };
  reduce_elements<T, T>(calls, begin, count, out, same, same);
}

std::vector<char> reduced(const std::map<int, CollectiveCall>& calls, std::size_t begin,
                          std::size_t count) {
  const int type = calls.begin()->second.type;
  std::vector<char> out(count * bytes_of(type));
  switch (type) {
    case nccl::api::kInt8:
      reduce_plain<std::int8_t>(calls, begin, count, out.data());
      break;
    case nccl::api::kUint8:
      reduce_plain<std::uint8_t>(calls, begin, count, out.data());
      break;
    case nccl::api::kInt32:
      reduce_plain<std::int32_t>(calls, begin, count, out.data());
      break;
    case nccl::api::kInt64:
      reduce_plain<std::int64_t>(calls, begin, count, out.data());
      break;
    case nccl::api::kFloat32:
      reduce_plain<float>(calls, begin, count, out.data());
      break;
    case nccl::api::kFloat64:
      reduce_plain<double>(calls, begin, count, out.data());
      break;
    case nccl::api::kFloat16:
      reduce_elements<float, Half>(
          calls, begin, count, out.data(),
          [](Half half) { return collectives::f32_of_f16(half.bits); },
          [](float value) { return Half{collectives::f16_of_f32(value)}; });
      break;
    default:
      reduce_elements<float, Bfloat>(
          calls, begin, count, out.data(),
          [](Bfloat half) { return collectives::f32_of_bf16(half.bits); },
          [](float value) { return Bfloat{collectives::bf16_of_f32(value)}; });
      break;
  }
  return out;
}

std::vector<char> copied(const CollectiveCall& call) {
  const auto* begin = static_cast<const char*>(call.in);
  return {begin, begin + call.count * bytes_of(call.type)};
}

// Computes the rank's output.
std::vector<char> output_of(const Meeting& meeting, int rank) {
  const CollectiveCall& own = meeting.calls.at(rank);
  switch (static_cast<char>(own.kind)) {
    case 'a':  // all_reduce
      return reduced(meeting.calls, 0, own.count);
    case 'r':  // reduce
      return rank == own.root ? reduced(meeting.calls, 0, own.count) : std::vector<char>();
    case 's':  // reduce_scatter
      return reduced(meeting.calls, static_cast<std::size_t>(rank) * own.count, own.count);
    case 'b':  // broadcast
      return copied(meeting.calls.at(own.root));
    default: {  // all_gather
      std::vector<char> all;
      for (const auto& [each, call] : meeting.calls) {
        const auto part = copied(call);
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    }
  }
}

bool same_call(const CollectiveCall& a, const CollectiveCall& b) {
  const bool same_op = a.op == b.op || (a.op >= 16 && b.op >= 16);
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.root == b.root && same_op;
}

// Waits until the condition holds; returns false if the communicator is aborted first.
template <typename Condition>
bool wait_for(Lock& lock, const Comm& comm, Condition condition) {
  State& all = state();
  const auto stands_still = [&] {
    return all.hung_kernels.count(comm.rank) != 0 || all.failed_ranks.count(comm.rank) != 0;
  };
  all.changed.wait(lock, [&] { return comm.aborted || (!stands_still() && condition()); });
  return !comm.aborted;
}

void linger(Lock& lock, void* out, std::size_t bytes) {
  const auto limit =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(state().linger_ms);
  while (std::chrono::steady_clock::now() < limit) {
    if (bytes > 0) std::memset(out, 0xee, bytes);
    state().changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

// What an aborted communicator has not got rid of: its owner may free the buffers.
void withdraw(World& world, const std::vector<std::shared_ptr<Message>>& sent) {
  for (auto& [ranks, box] : world.mail) {
    std::erase_if(box, [&](const auto& each) {
      return std::find(sent.begin(), sent.end(), each) != sent.end();
    });
  }
}

struct Running {
  Running() { ++state().running_kernels; }
  ~Running() { --state().running_kernels; }
};

}  // namespace

std::size_t bytes_of(int type) {
  switch (type) {
    case nccl::api::kInt8:
    case nccl::api::kUint8:
      return 1;
    case nccl::api::kFloat16:
    case nccl::api::kBfloat16:
      return 2;
    case nccl::api::kInt64:
    case nccl::api::kFloat64:
      return 8;
    default:
      return 4;
  }
}

double factor_of(const void* element, int type) {
  switch (type) {
    case nccl::api::kFloat16:
      return collectives::f32_of_f16(load<std::uint16_t>(element, 0));
    case nccl::api::kBfloat16:
      return collectives::f32_of_bf16(load<std::uint16_t>(element, 0));
    case nccl::api::kFloat64:
      return load<double>(element, 0);
    default:
      return load<float>(element, 0);
  }
}

void run_collective(Lock& lock, Comm& comm, std::uint64_t number, const CollectiveCall& call) {
  State& all = state();
  const Running running;
  const std::size_t own_bytes = call.count * bytes_of(call.type);
  const auto world = comm.world;
  Meeting& meeting = world->meetings[number];
  const bool came = wait_for(lock, comm, [] { return true; });
  if (came) meeting.calls[comm.rank] = call;
  all.changed.notify_all();
  const auto everybody = [&] {
    return meeting.calls.size() == static_cast<std::size_t>(world->size);
  };
  // The owner of an aborted communicator may free its buffers, so no other rank may read them. The
  // others wait instead, as NCCL's kernels do.
  const auto give_up = [&] {
    meeting.calls.erase(comm.rank);
    linger(lock, call.out, own_bytes);
  };
  if (!came || !wait_for(lock, comm, everybody)) return give_up();
  const bool agreed = std::all_of(meeting.calls.begin(), meeting.calls.end(),
                                  [&](const auto& each) { return same_call(each.second, call); });
  // NCCL does not compare arguments: mismatched ranks wait for each other.
  if (!agreed && !wait_for(lock, comm, [] { return false; })) return give_up();
  const std::vector<char> output = output_of(meeting, comm.rank);
  ++meeting.computed;
  all.changed.notify_all();
  if (!wait_for(lock, comm, [&] { return meeting.computed == world->size; })) return give_up();
  if (!output.empty()) std::memcpy(call.out, output.data(), output.size());
  if (++meeting.left == world->size) world->meetings.erase(number);
}

void run_transfers(Lock& lock, Comm& comm, const std::vector<PeerTransfer>& transfers) {
  State& all = state();
  const Running running;
  const auto world = comm.world;
  std::vector<std::shared_ptr<Message>> sent;
  if (!wait_for(lock, comm, [] { return true; })) return;
  for (const PeerTransfer& transfer : transfers) {
    if (!transfer.sends) continue;
    auto message = std::make_shared<Message>();
    message->data = transfer.data;
    message->bytes = transfer.bytes;
    sent.push_back(message);
    world->mail[{comm.rank, transfer.peer}].push_back(message);
  }
  all.changed.notify_all();
  for (const PeerTransfer& transfer : transfers) {
    if (transfer.sends) continue;
    auto& box = world->mail[{transfer.peer, comm.rank}];
    // A message of another size is never received.
    const auto there = [&] { return !box.empty() && box.front()->bytes == transfer.bytes; };
    if (!wait_for(lock, comm, there)) {
      withdraw(*world, sent);
      return linger(lock, transfer.data, transfer.bytes);
    }
    if (transfer.bytes > 0) {
      std::memcpy(transfer.data, box.front()->data, transfer.bytes);
    }
    box.front()->taken = true;
    box.pop_front();
    all.changed.notify_all();
  }
  // The sender owns the buffer again once it has been read.
  const auto all_taken = [&] {
    return std::all_of(sent.begin(), sent.end(), [](const auto& each) { return each->taken; });
  };
  if (!wait_for(lock, comm, all_taken)) withdraw(*world, sent);
}

}  // namespace ddp::standin
