#include "bench/exercise.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "bench/pattern.h"

namespace ddp::bench {
namespace {

constexpr Rank kRoot = 0;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kSpotChecks = 8;

constexpr std::pair<const char*, Op> kOps[] = {
    {"all_reduce", Op::kAllReduce},
    {"broadcast", Op::kBroadcast},
    {"reduce", Op::kReduce},
    {"all_gather", Op::kAllGather},
    {"reduce_scatter", Op::kReduceScatter},
    {"gather", Op::kGather},
    {"scatter", Op::kScatter},
    {"all_to_all", Op::kAllToAll},
    {"send_recv", Op::kSendRecv},
};

std::shared_ptr<std::byte> private_memory(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, [](std::byte* data) { std::free(data); }};
}

// Elements of the input and of the output, 0 if this rank has none, and of the part that one rank
// sends to one other.
struct Shape {
  std::size_t in = 0;
  std::size_t out = 0;
  std::size_t part = 0;
};

Shape shape_of(Op op, std::size_t count, int rank, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t part = std::max<std::size_t>(1, count / ranks);
  switch (op) {
    case Op::kAllGather:
      return {count, count * ranks, count};
    case Op::kReduceScatter:
      return {part * ranks, part, part};
    case Op::kGather:
      return {count, rank == kRoot ? count * ranks : 0, count};
    case Op::kScatter:
      return {rank == kRoot ? count * ranks : 0, count, count};
    case Op::kAllToAll:
      return {part * ranks, part * ranks, part};
    case Op::kSendRecv:
      return {rank == 0 ? count : 0, rank < 2 ? count : 0, count};
    default:
      return {count, 0, count};  // In place.
  }
}

}  // namespace

Op parse_op(const std::string& name) {
  for (const auto& [known, op] : kOps) {
    if (name == known) return op;
  }
  throw std::invalid_argument("--op: unknown operation '" + name + "'");
}

DType parse_dtype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  throw std::invalid_argument("--dtype: '" + name + "' is neither f32 nor bf16");
}

Exercise::Exercise(ProcessGroup& group, Op op, DType type, bool registered, std::size_t bytes)
    : group_(group), op_(op), element_(dtype_bytes(type)) {
  const std::size_t count = std::max<std::size_t>(1, bytes / element_);
  const Shape shape = shape_of(op, count, group.rank(), group.size());
  per_rank_ = shape.part;
  if (shape.in > 0) in_memory_ = memory(registered, shape.in * element_);
  if (shape.out > 0) out_memory_ = memory(registered, shape.out * element_);
  in_ = {in_memory_.get(), shape.in, type};
  out_ = {out_memory_.get(), shape.out, type};
}

std::shared_ptr<std::byte> Exercise::memory(bool registered, std::size_t bytes) {
  auto memory = registered ? group_.allocate(bytes) : private_memory(bytes);
  if (memory == nullptr) {
    throw std::runtime_error("no registered memory left for " + std::to_string(bytes) + " bytes");
  }
  std::memset(memory.get(), 0, bytes);  // So that no page fault comes later.
  return memory;
}

void Exercise::dirty(unsigned run) {
  auto* in = static_cast<std::byte*>(in_.data);
  if (in != nullptr) fill_pattern(in, in_.count, element_, group_.rank(), run);
  if (out_.data != nullptr) std::memset(out_.data, 0, out_.bytes());
}

OpOptions at_once() {
  OpOptions options;
  options.synchronous = true;
  return options;
}

void Exercise::execute() {
  switch (op_) {
    case Op::kAllReduce:
      return group_.all_reduce(in_, ReduceOp::kSum, at_once())->wait();
    case Op::kBroadcast:
      return group_.broadcast(in_, kRoot, at_once())->wait();
    case Op::kReduce:
      return group_.reduce(in_, kRoot, ReduceOp::kSum, at_once())->wait();
    case Op::kAllGather:
      return group_.all_gather(in_, out_, at_once())->wait();
    case Op::kReduceScatter:
      return group_.reduce_scatter(in_, out_, ReduceOp::kSum, at_once())->wait();
    case Op::kGather:
      return group_.gather(in_, out_, kRoot, at_once())->wait();
    case Op::kScatter:
      return group_.scatter(in_, out_, kRoot, at_once())->wait();
    case Op::kAllToAll:
      return group_.all_to_all(in_, out_, at_once())->wait();
    case Op::kSendRecv:
      return execute_send_recv();
  }
}

void Exercise::execute_send_recv() {
  if (group_.rank() == 0) {
    group_.send(in_, 1, 0)->wait();
    group_.recv(out_, 1, 0)->wait();
  } else if (group_.rank() == 1) {
    group_.recv(out_, 0, 0)->wait();
    group_.send(out_, 0, 0)->wait();
  }
}

bool Exercise::right(unsigned run, bool all) const {
  const Buffer& result = out_.data != nullptr ? out_ : in_;
  const bool in_place_at_root = op_ == Op::kReduce && group_.rank() != kRoot;
  const bool none = (op_ == Op::kGather || op_ == Op::kSendRecv) && out_.data == nullptr;
  if (in_place_at_root || none) return true;
  const auto* data = static_cast<const std::byte*>(result.data);
  const std::size_t step =
      all ? 1 : std::max<std::size_t>(1, (result.count - 1) / (kSpotChecks - 1));
  for (std::size_t index = 0; index < result.count; index += step) {
    if (element_at(data, element_, index) != expected(run, index)) return false;
  }
  return true;
}

float Exercise::sum(unsigned run, std::size_t index) const {
  float total = 0;
  for (Rank rank = 0; rank < group_.size(); ++rank) total += pattern(rank, run, index);
  return total;
}

float Exercise::expected(unsigned run, std::size_t index) const {
  const auto own = static_cast<std::size_t>(group_.rank()) * per_rank_;
  const auto from = static_cast<int>(index / per_rank_);
  switch (op_) {
    case Op::kAllReduce:
    case Op::kReduce:
      return sum(run, index);
    case Op::kReduceScatter:
      return sum(run, own + index);
    case Op::kAllGather:
    case Op::kGather:
      return pattern(from, run, index % per_rank_);
    case Op::kScatter:
      return pattern(kRoot, run, own + index);
    case Op::kAllToAll:
      return pattern(from, run, own + index % per_rank_);
    default:
      return pattern(kRoot, run, index);
  }
}

}  // namespace ddp::bench
