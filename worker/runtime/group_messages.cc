#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/collectives/entry.h"
#include "worker/runtime/group.h"
#include "worker/runtime/post_office.h"

// The operations of a Group that use messages between two ranks.
namespace ddp::runtime {
namespace {

constexpr std::uint64_t kMonitorTag = kInternalTags * 2;
constexpr Duration kMonitorPause{1};

Buffer part_of(const Buffer& whole, std::size_t begin, std::size_t count) {
  auto* data = static_cast<std::byte*>(whole.data);
  return {data + begin * dtype_bytes(whole.type), count, whole.type};
}

// Elements [begin, begin + count) for one peer.
struct Block {
  std::size_t begin = 0;
  std::size_t count = 0;
};

std::vector<Block> blocks_of(const std::vector<std::size_t>& counts, std::size_t equal, int size) {
  std::vector<Block> blocks;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
    blocks.push_back({begin, counts.empty() ? equal : counts[rank]});
    begin += blocks.back().count;
  }
  return blocks;
}

struct Plan {
  std::vector<Block> outgoing;  // By receiving rank, in the input.
  std::vector<Block> incoming;  // By sending rank, in the output.
};

Plan plan_of(const collectives::Operation& operation, Rank rank, int size) {
  const collectives::OpRecord& record = operation.record;
  const std::size_t block = record.count;
  const std::vector<Block> nothing(static_cast<std::size_t>(size));
  Plan plan{nothing, nothing};
  const auto root = static_cast<std::size_t>(std::max(record.root, 0));
  switch (record.kind) {
    case collectives::OpKind::kGather:
      plan.outgoing[root] = {0, block};
      if (rank == record.root) plan.incoming = blocks_of({}, block, size);
      break;
    case collectives::OpKind::kScatter:
      plan.incoming[root] = {0, block};
      if (rank == record.root) plan.outgoing = blocks_of({}, block, size);
      break;
    case collectives::OpKind::kAllGather:
      plan.incoming = blocks_of(operation.out_counts, 0, size);
      plan.outgoing.assign(static_cast<std::size_t>(size), {0, operation.in.count});
      break;
    default:
      plan.outgoing = blocks_of(operation.in_counts, block, size);
      plan.incoming = blocks_of(operation.out_counts, block, size);
      break;
  }
  return plan;
}

Failure failure_of(const CollectiveError& error) {
  return {error.code, error.suspect_rank, error.what(), true};
}

}  // namespace

WorkPtr Group::send(Buffer buffer, Rank to, std::uint32_t tag, OpOptions options) {
  return messages().send(buffer, to, tag, std::move(options), messages_issued_++);
}

WorkPtr Group::recv(Buffer buffer, Rank from, std::uint32_t tag, OpOptions options) {
  return messages().recv(buffer, from, tag, std::move(options), messages_issued_++);
}

std::shared_ptr<MessageWork> Group::recv_any(Buffer buffer, std::uint32_t tag, OpOptions options) {
  return messages().recv_any(buffer, tag, std::move(options), messages_issued_++);
}

PostOffice& Group::messages() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw CollectiveError(*failure_);
  return *messages_;
}

// Moves blocks between ranks of different nodes: a message for every pair.
Outcome Group::exchange_messages(const collectives::Operation& operation) {
  const Plan plan = plan_of(operation, rank_, size_);
  // Of the counts of an all_to_allv, only the two ranks know whether they agree. So a block without
  // elements is sent, too: if it were not, a rank that expects some would wait for its deadline.
  const bool sends_empty =
      operation.record.kind == collectives::OpKind::kAllToAll && operation.uneven();
  const std::uint64_t tag = kInternalTags + operation.record.sequence;
  OpOptions options;
  options.timeout = std::max(
      Duration(1),
      std::chrono::ceil<Duration>(operation.deadline + collectives::kStallGrace - Clock::now()));
  options.tag = name_of(operation.record.kind);
  const PostOffice::Silence silence(*messages_);  // executing_ is held.
  std::vector<WorkPtr> works;
  try {
    for (Rank step = 0; step < size_; ++step) {
      const Rank from = (rank_ + size_ - step) % size_;
      const Block block = plan.incoming[static_cast<std::size_t>(from)];
      if (block.count == 0 && !sends_empty) continue;
      works.push_back(messages_->recv(part_of(operation.out, block.begin, block.count), from, tag,
                                      options, operation.record.sequence));
    }
    for (Rank step = 0; step < size_; ++step) {
      const Rank to = (rank_ + step) % size_;
      const Block block = plan.outgoing[static_cast<std::size_t>(to)];
      if (block.count == 0 && !sends_empty) continue;
      works.push_back(messages_->send(part_of(operation.in, block.begin, block.count), to, tag,
                                      options, operation.record.sequence));
    }
    for (const WorkPtr& work : works) work->wait();
  } catch (const CollectiveError& error) {
    return failure_of(error);
  }
  return {};
}

void Group::monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  if (timeout.count() == 0) timeout = options_.timeout;
  const TimePoint deadline = Clock::now() + timeout;
  std::uint8_t token = 0;
  // The other ranks wait longer, so that rank 0 reports first.
  const OpOptions patient{timeout + 2 * collectives::kStallGrace, "monitored_barrier", false};
  const auto exchange = [&](Rank peer, std::uint64_t step, bool sends) {
    const Buffer buffer{&token, 1, DType::kU8};
    return sends ? messages().send(buffer, peer, kMonitorTag + step, patient, messages_issued_++)
                 : messages().recv(buffer, peer, kMonitorTag + step, patient, messages_issued_++);
  };
  if (size_ == 1) return;
  if (rank_ != 0) {
    exchange(0, 0, true)->wait();
    exchange(0, 1, false)->wait();
    return;
  }
  std::vector<std::uint8_t> tokens(static_cast<std::size_t>(size_));
  std::vector<WorkPtr> arrivals;
  for (Rank rank = 1; rank < size_; ++rank) {
    arrivals.push_back(messages().recv({&tokens[static_cast<std::size_t>(rank)], 1, DType::kU8},
                                       rank, kMonitorTag, patient, messages_issued_++));
  }
  std::vector<Rank> missing;
  for (Rank rank = 1; rank < size_; ++rank) {
    const WorkPtr& arrival = arrivals[static_cast<std::size_t>(rank - 1)];
    while (!arrival->done() && Clock::now() < deadline) std::this_thread::sleep_for(kMonitorPause);
    if (arrival->done()) {
      arrival->wait();  // Throws if it failed.
      continue;
    }
    missing.push_back(rank);
    if (!wait_all_ranks) break;
  }
  if (!missing.empty()) {
    const Failure cause{
        Errc::kTimeout, missing.front(),
        fmt::format("monitored_barrier: after {} ms {} {} not arrived{}", timeout.count(),
                    collectives::list_ranks(missing), missing.size() == 1 ? "has" : "have",
                    wait_all_ranks ? "" : "; there may be more")};
    abort_with(cause);
    throw CollectiveError(cause);
  }
  for (Rank rank = 1; rank < size_; ++rank) exchange(rank, 1, true)->wait();
}

}  // namespace ddp::runtime
