#include "worker/collectives/collectives.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/collectives/block_exchange.h"
#include "worker/collectives/direct_reduce.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/ring.h"
#include "worker/collectives/rooted_stream.h"
#include "worker/collectives/small.h"
#include "worker/transport/take_lines.h"

namespace ddp::collectives {
namespace {

// Flags that not every operation publishes are refreshed every this many operations: the numbers
// wrap, and a flag that lags by half their range would seem to be ahead.
constexpr std::uint32_t kRefreshEvery = 1u << 20;

bool has_source_rank(OpKind kind) { return kind == OpKind::kBroadcast || kind == OpKind::kScatter; }

bool pushes_results(OpKind kind) { return kind == OpKind::kAllReduce || kind == OpKind::kReduce; }

bool registered(OpKind kind, const Offer& offer) {
  return offer.in != transport::Arena::kPrivate &&
         (!pushes_results(kind) || offer.out != transport::Arena::kPrivate);
}

}  // namespace

Collectives::Collectives(transport::Transport& transport)
    : transport_(transport),
      number_(transport.segment().flag(transport.topology().local_rank(), transport::Flag::kEntry)),
      chunks_(transport.segment().flag(transport.topology().local_rank(), transport::Flag::kIn)) {}

NodeGather::Blocks Collectives::no_blocks() {
  return NodeGather::Blocks(static_cast<std::size_t>(transport_.topology().nodes()), &memory_);
}

Offer Collectives::offer_of(const Operation& operation) const {
  Offer offer;
  offer.factor = operation.factor;
  if (!choice_.in_place()) return offer;
  const transport::Arena& arena = *transport_.arena();
  offer.in = arena.offset_of(operation.in.data, operation.in.bytes());
  offer.out = operation.out.data == operation.in.data && operation.out.count == operation.in.count
                  ? offer.in
                  : arena.offset_of(operation.out.data, operation.out.bytes());
  return offer;
}

bool Collectives::is_small(const Operation& operation) const {
  const transport::Topology& topology = transport_.topology();
  return choice_.one_shot() && !operation.uneven() &&
         small::payload_bytes(operation.record, topology.world_size()) <= transport::kSmallBytes &&
         small::fits(operation.record, topology);
}

bool Collectives::shows_payload(const Operation& operation, const Offer& offer) const {
  const transport::Topology& topology = transport_.topology();
  if (topology.nodes() > 1) return true;
  const std::size_t bytes = small::payload_bytes(operation.record, topology.world_size());
  return bytes <= choice_.direct_above() || !registered(operation.record.kind, offer);
}

bool Collectives::all_show_payload(const Operation& operation, const Entry& entry) const {
  const OpKind kind = operation.record.kind;
  for (int local = 0; local < transport_.topology().local_size(); ++local) {
    if (has_source_rank(kind) && transport_.topology().global(local) != operation.record.root)
      continue;
    if (!shows_payload(operation, entry.offer(local))) return false;
  }
  return true;
}

Outcome Collectives::run(const Operation& operation) {
  if (auto failure = transport_.check()) return failure;
  const FloatEnvironment environment;
  const transport::Topology& topology = transport_.topology();
  if (number_ % kRefreshEvery == 0) refresh_flags();
  const Offer offer = offer_of(operation);
  const bool small = is_small(operation);
  const void* payload = operation.in.data;
  std::size_t payload_bytes = 0;
  if (operation.record.kind == OpKind::kAllToAll && operation.uneven() && topology.nodes() == 1) {
    payload = operation.in_counts.data();
    payload_bytes = operation.in_counts.size() * sizeof(std::uint64_t);
  } else if (small && shows_payload(operation, offer)) {
    const bool silent =
        has_source_rank(operation.record.kind) && topology.rank() != operation.record.root;
    payload_bytes = silent ? 0 : small::payload_bytes(operation.record, topology.world_size());
  }
  Entry entry(transport_, operation.record, offer, number_, payload, payload_bytes);
  ++number_;
  const bool heads_meet = small || meets_first(operation);
  std::optional<NodeGather> meeting;
  if (!heads_meet && transport_.has_links()) {
    meeting.emplace(transport_, operation.record, no_blocks(),
                    choice_.all_nodes_at_once(topology.nodes()));
  }
  auto failure = meeting ? enter_with_lane(operation, entry, *meeting) : enter(operation, entry);
  if (failure) return failure;
  if (meets_first(operation)) failure = meet_nodes(operation, no_blocks());
  if (failure || needs_messages(operation)) return failure;
  if (small && all_show_payload(operation, entry)) return run_small(operation, entry);
  return topology.nodes() == 1 ? run_large(operation, entry)
                               : run_between_nodes(operation, entry, meeting ? &*meeting : nullptr);
}

bool Collectives::needs_messages(const Operation& operation) const {
  if (transport_.topology().nodes() == 1 || is_small(operation)) return false;
  switch (operation.record.kind) {
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kAllToAll:
      return true;
    case OpKind::kAllGather:
      return operation.uneven();
    default:
      return false;
  }
}

bool Collectives::meets_first(const Operation& operation) const {
  if (transport_.topology().nodes() == 1 || is_small(operation)) return false;
  const bool of_root_alone = operation.record.kind == OpKind::kBroadcast;
  return of_root_alone || operation.record.count == 0 || needs_messages(operation);
}

Outcome Collectives::enter(const Operation& operation, Entry& entry) {
  auto failure = transport_.drive(
      operation.deadline, [&] { return entry.step(); }, transport::Transport::Touches::kOwnMemory);
  if (failure && failure->code == Errc::kTimeout && !failure->told)
    return not_arrived(operation, &entry, nullptr);
  return failure;
}

// Waits for the ranks of the node, and for those of this rank's lane on the other nodes. If the
// operation's data follows the meeting on the links at once, waits only for the node.
Outcome Collectives::enter_with_lane(const Operation& operation, Entry& entry,
                                     NodeGather& meeting) {
  const bool both = !meets_on_the_way(operation);
  bool entered = false;
  auto failure = transport_.drive(operation.deadline, [&] {
    StepResult result;
    const auto advance = [&](bool done, auto& part) {
      if (done) return true;
      const transport::Advance progress = part.step();
      return result.add(progress == transport::Advance::kDone ? transport::Advance::kMoved
                                                              : progress);
    };
    if (!entered) {
      const transport::Advance progress = entry.step();
      entered = progress == transport::Advance::kDone;
      if (!result.add(entered ? transport::Advance::kMoved : progress)) return result.get(false);
    }
    if (!advance(meeting.done(), meeting)) return result.get(false);
    return result.get(entered && (meeting.done() || !both));
  });
  if (failure && failure->code == Errc::kTimeout && !failure->told)
    return not_arrived(operation, &entry, &meeting);
  return failure;
}

// The node's head meets the other nodes' heads; its neighbours wait until it has.
Outcome Collectives::meet_nodes(const Operation& operation, NodeGather::Blocks blocks) {
  const int nodes = transport_.topology().nodes();
  if (transport_.topology().local_rank() != 0) {
    auto failure = transport_.drive(
        operation.deadline + kStallGrace,
        [&] {
          return transport_.reached(0, transport::Flag::kNodes, number_)
                     ? transport::Advance::kDone
                     : transport::Advance::kBlocked;
        },
        transport::Transport::Touches::kOwnMemory);
    if (failure && failure->code == Errc::kTimeout && !failure->told) return stalled(operation);
    return failure;
  }
  NodeGather gather(transport_, operation.record, std::move(blocks),
                    choice_.all_nodes_at_once(nodes));
  // Another node's head may still wait for a rank of its own node, which it can name. So give it
  // time to report first.
  auto failure = transport_.drive(
      operation.deadline + kStallGrace / 2, [&] { return gather.step(); },
      transport::Transport::Touches::kOwnMemory);
  if (failure && failure->code == Errc::kTimeout && !failure->told)
    return not_arrived(operation, nullptr, &gather);
  if (!failure) transport_.publish(transport::Flag::kNodes, number_);
  return failure;
}

Outcome Collectives::run_small(const Operation& operation, const Entry& entry) {
  const auto blocks = small::blocks(operation.record, transport_, &memory_);
  if (!blocks.empty()) {
    prepare_staging();
    if (transport_.topology().local_rank() == 0)
      small::fill_own_block(operation, transport_, entry, blocks, parts_);
    if (auto failure = meet_nodes(operation, NodeGather::Blocks(blocks, &memory_))) return failure;
  }
  small::finish(operation, transport_, entry, blocks, parts_);
  const transport::Topology& topology = transport_.topology();
  if (topology.nodes() == 1 && topology.local_size() == 2) {
    const int other = 1 - topology.local_rank();
    transport::take_lines(transport_.segment().operation(other, number_ - 1).payload,
                          small::payload_bytes(operation.record, topology.world_size()));
  }
  return {};
}

Outcome Collectives::run_large(const Operation& operation, const Entry& entry) {
  const OpKind kind = operation.record.kind;
  if (auto failure = check_counts(operation, entry)) return failure;
  const std::uint32_t number = number_ - 1;
  if (!pushes_results(kind))
    return run_stream(operation,
                      BlockExchange(transport_, operation, entry, number, chunks_, &memory_));
  bool direct = true;
  for (int local = 0; local < transport_.topology().local_size(); ++local) {
    direct = direct && registered(kind, entry.offer(local));
  }
  if (direct) {
    DirectReduce stream(transport_, operation, entry, number, &memory_);
    auto failure =
        transport_.drive(operation.deadline + kStallGrace, [&] { return stream.step(); });
    if (failure && failure->code == Errc::kTimeout && !failure->told) return stalled(operation);
    return failure;
  }
  return run_stream(operation, AllReduce(transport_, scratch_, operation, entry, number, chunks_,
                                         false, &memory_));
}

Outcome Collectives::run_between_nodes(const Operation& operation, const Entry& entry,
                                       NodeGather* meeting) {
  switch (operation.record.kind) {
    case OpKind::kBroadcast:
    case OpKind::kAllGather:
      return run_stream(operation, RootedStream(transport_, operation, chunks_));
    default:
      if (choice_.ring(operation.record, transport_.topology()))
        return run_stream(operation, Ring(transport_, operation, ring_scratch_));
      if (auto failure = transport_.make_all_links(operation.deadline)) return failure;
      return run_stream(operation,
                        AllReduce(transport_, scratch_, operation, entry, number_ - 1, chunks_,
                                  choice_.swap(transport_.topology()), &memory_,
                                  meets_on_the_way(operation) ? meeting : nullptr),
                        meets_on_the_way(operation) ? meeting : nullptr);
  }
}

bool Collectives::meets_on_the_way(const Operation& operation) const {
  const transport::Topology& topology = transport_.topology();
  const OpKind kind = operation.record.kind;
  return (pushes_results(kind) || kind == OpKind::kReduceScatter) && topology.nodes() > 1 &&
         choice_.all_nodes_at_once(topology.nodes()) && !is_small(operation) &&
         !choice_.ring(operation.record, topology);
}

// For all_to_all of unequal blocks: compares what others send here with what this rank expects.
Outcome Collectives::check_counts(const Operation& operation, const Entry& entry) const {
  if (operation.record.kind != OpKind::kAllToAll || !operation.uneven()) return {};
  const transport::Topology& topology = transport_.topology();
  const auto self = static_cast<std::size_t>(topology.rank());
  for (Rank rank = 0; rank < topology.world_size(); ++rank) {
    std::uint64_t sent = 0;
    std::memcpy(&sent, entry.payload(rank) + self * sizeof(sent), sizeof(sent));
    const std::size_t expected = operation.out_counts[static_cast<std::size_t>(rank)];
    if (sent == expected) continue;
    return Failure{Errc::kMismatch, -1,
                   fmt::format("rank {} sends {} elements to rank {}, which expects {}", rank, sent,
                               topology.rank(), expected)};
  }
  return {};
}

// This rank has finished all operations so far, so it uses nobody's memory for them.
void Collectives::refresh_flags() {
  transport_.publish(transport::Flag::kDone, number_);
  transport_.publish(transport::Flag::kNodes, number_);
}

void Collectives::prepare_staging() {
  if (!std::exchange(staging_ready_, true)) transport_.segment().populate_staging();
}

template <typename Stream>
Outcome Collectives::run_stream(const Operation& operation, Stream&& stream,
                                const NodeGather* meeting) {
  if (stream.chunks() > 0) prepare_staging();
  const auto drive = [&](TimePoint deadline) {
    return transport_.drive(deadline, [&] { return stream.step(); });
  };
  auto failure = drive(operation.deadline + (meeting == nullptr ? kStallGrace : Duration(0)));
  const bool late = failure && failure->code == Errc::kTimeout && !failure->told;
  if (late && meeting != nullptr) {
    if (!meeting->done()) return not_arrived(operation, nullptr, meeting);
    failure = drive(operation.deadline + kStallGrace);
  }
  if (failure) {
    if (failure->code == Errc::kTimeout && !failure->told) return stalled(operation);
    return failure;
  }
  if (stream.chunks() == 0) return {};
  chunks_ += stream.chunks();
  // Also sets the flags of stages in which this rank had no part, to agree with the others' flags.
  const int local = transport_.topology().local_rank();
  for (const transport::Flag flag : {transport::Flag::kIn, transport::Flag::kReduced,
                                     transport::Flag::kReady, transport::Flag::kOut}) {
    if (transport_.segment().flag(local, flag) != chunks_) transport_.publish(flag, chunks_);
  }
  return {};
}

Failure Collectives::not_arrived(const Operation& operation, const Entry* entry,
                                 const NodeGather* gather) const {
  std::vector<Rank> arrived;
  std::vector<Rank> missing;
  if (entry != nullptr) {
    entry->note_arrivals(arrived, missing);
  } else {
    for (int local = 0; local < transport_.topology().local_size(); ++local)
      arrived.push_back(transport_.topology().global(local));
  }
  if (gather != nullptr) gather->note_arrivals(arrived, missing);
  std::sort(arrived.begin(), arrived.end());
  std::sort(missing.begin(), missing.end());
  return {Errc::kTimeout, missing.empty() ? -1 : missing.front(),
          fmt::format("timed out after {} ms waiting for all ranks to call it; arrived: {}; not "
                      "arrived: {}",
                      operation.timeout.count(), list_ranks(arrived), list_ranks(missing))};
}

// Every rank of the node and of the lane had entered the operation, so the message can only say how
// far each has come.
Failure Collectives::stalled(const Operation& operation) const {
  const transport::Topology& topology = transport_.topology();
  std::string progress;
  for (int local = 0; local < topology.local_size(); ++local) {
    const auto chunk = [&](transport::Flag flag) {
      return transport_.segment().flag(local, flag) - chunks_;
    };
    progress +=
        fmt::format("{}rank {} has provided {}, summed {} and received {} chunks",
                    local == 0 ? "" : ", ", topology.global(local), chunk(transport::Flag::kIn),
                    chunk(transport::Flag::kReady), chunk(transport::Flag::kOut));
  }
  return {Errc::kTimeout, -1,
          fmt::format("timed out after {} ms: all ranks that exchange data with this one had "
                      "arrived, but the data stopped in "
                      "mid-operation ({})",
                      operation.timeout.count(), progress)};
}

}  // namespace ddp::collectives
