#include "worker/collectives/collectives.h"

#include <array>
#include <cstring>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/rooted_stream.h"

namespace ddp {

Collectives::Collectives(Transport& transport)
    : transport_(transport),
      number_(transport.segment().flag(transport.topology().local_rank(), Flag::kEntry)),
      chunks_(transport.segment().flag(transport.topology().local_rank(), Flag::kIn)) {
  const Topology& topology = transport_.topology();
  // A value per byte: the pages are there before the first operation needs them.
  if (transport_.previous() != nullptr || transport_.next() != nullptr) {
    scratch_.partials.assign(kSlots * kSlotBytes, std::byte{0});
  }
  scratch_.sources.reserve(static_cast<std::size_t>(topology.local_size()) + 1);
  scratch_.ranges.reserve(static_cast<std::size_t>(topology.local_size()) + 1);
}

Outcome Collectives::run(const Operation& operation) {
  if (auto failure = transport_.check()) return failure;
  const FloatEnvironment environment;
  const bool small = is_small(operation);
  Entry entry(transport_, operation.record, number_, operation.in.data,
              small ? operation.in.bytes() : 0);
  if (auto failure = enter(operation, entry)) return failure;
  ++number_;
  switch (operation.record.kind) {
    case OpKind::kAllReduce:
      if (small) return run_small(operation, entry);
      return run_stream(operation, AllReduce(transport_, scratch_, operation, chunks_));
    case OpKind::kBroadcast:
    case OpKind::kAllGather:
      if (small) return run_small(operation, entry);
      return run_stream(operation, RootedStream(transport_, operation, chunks_));
    case OpKind::kBarrier:
      break;
  }
  if (transport_.topology().nodes() == 1) return {};
  // Nodes meet by reducing one byte: its result cannot come before every rank has entered.
  std::uint8_t token = 0;
  Operation meeting = operation;
  meeting.record.op = ReduceOp::kMax;
  meeting.in = meeting.out = Buffer{&token, 1, DType::kU8};
  return run_stream(meeting, AllReduce(transport_, scratch_, meeting, chunks_));
}

bool Collectives::is_small(const Operation& operation) const {
  return transport_.topology().nodes() == 1 && operation.in.bytes() <= kSmallBytes;
}

Outcome Collectives::enter(const Operation& operation, Entry& entry) {
  auto failure = transport_.drive(operation.deadline, [&] { return entry.step(); });
  if (failure && failure->code == Errc::kTimeout && !failure->told) {
    failure->suspect = entry.first_missing();
    failure->text = fmt::format("timed out after {} ms waiting for all ranks to call it; {}",
                                operation.timeout.count(), entry.missing());
  }
  return failure;
}

// Every rank has every payload of the node before it, and computes the result by itself, all in the
// same order.
Outcome Collectives::run_small(const Operation& operation, const Entry& /*entered*/) {
  Segment& segment = transport_.segment();
  const std::uint32_t number = number_ - 1;
  const std::size_t bytes = operation.in.bytes();
  auto* out = static_cast<std::byte*>(operation.out.data);
  const int local_size = transport_.topology().local_size();
  if (bytes == 0) return {};
  switch (operation.record.kind) {
    case OpKind::kAllReduce: {
      scratch_.sources.clear();
      scratch_.ranges.clear();
      for (int local = 0; local < local_size; ++local) {
        scratch_.sources.push_back(segment.operation(local, number).payload);
        scratch_.ranges.push_back({local, local + 1});
      }
      const Reduction reduction{operation.out.type, operation.out.type,
                                static_cast<ReduceOp::Kind>(operation.record.op), local_size};
      reduce(reduction, scratch_.ranges, scratch_.sources, std::array{out}, operation.out.count);
      break;
    }
    case OpKind::kBroadcast:
      if (operation.record.root != transport_.topology().rank()) {
        std::memcpy(out, segment.operation(operation.record.root, number).payload, bytes);
      }
      break;
    case OpKind::kAllGather:
      for (int local = 0; local < local_size; ++local) {
        std::memcpy(out + static_cast<std::size_t>(local) * bytes,
                    segment.operation(local, number).payload, bytes);
      }
      break;
    case OpKind::kBarrier:
      break;
  }
  return {};
}

template <typename Stream>
Outcome Collectives::run_stream(const Operation& operation, Stream&& stream) {
  auto failure = transport_.drive(operation.deadline + kStallGrace, [&] { return stream.step(); });
  if (failure) {
    if (failure->code == Errc::kTimeout && !failure->told) return stalled(operation);
    return failure;
  }
  chunks_ += stream.chunks();
  // Stages that this rank had no part in: its flags must agree with the others' from here on.
  const int local = transport_.topology().local_rank();
  for (const Flag flag : {Flag::kIn, Flag::kReduced, Flag::kReady, Flag::kOut}) {
    if (transport_.segment().flag(local, flag) != chunks_) transport_.publish(flag, chunks_);
  }
  return {};
}

// Every rank of the node and every neighbour had entered, so how far each has come is what can be
// told.
Failure Collectives::stalled(const Operation& operation) const {
  const Topology& topology = transport_.topology();
  std::string progress;
  for (int local = 0; local < topology.local_size(); ++local) {
    const auto chunk = [&](Flag flag) { return transport_.segment().flag(local, flag) - chunks_; };
    progress += fmt::format("{}rank {} gave {} and took {} chunks", local == 0 ? "" : ", ",
                            topology.global(local), chunk(Flag::kIn), chunk(Flag::kOut));
  }
  return {Errc::kTimeout, -1,
          fmt::format("timed out after {} ms: this node and its neighbours had arrived, the data "
                      "stopped under way ({})",
                      operation.timeout.count(), progress)};
}

}  // namespace ddp
