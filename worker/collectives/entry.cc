#include "worker/collectives/entry.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/errc.h"

namespace ddp {

Entry::Entry(Transport& transport, const OpRecord& record, std::uint32_t number,
             const void* payload, std::size_t payload_bytes)
    : transport_(transport), record_(record), number_(number) {
  DDP_CHECK(payload_bytes <= kSmallBytes, "payload of {} bytes", payload_bytes);
  OperationSlot& slot = transport_.segment().operation(transport_.topology().local_rank(), number_);
  std::memcpy(slot.record, &record_, sizeof(record_));
  if (payload_bytes > 0) std::memcpy(slot.payload, payload, payload_bytes);
  transport_.publish(Flag::kEntry, number_ + 1);
  greeting_.record = record_;
  neighbours_[0].link = transport_.previous();
  neighbours_[1].link = transport_.next();
}

Progress Entry::step() {
  StepResult result;
  if (!result.add(step_local())) return result.get(false);
  bool done = local_seen_ == transport_.topology().local_size();
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.link == nullptr) continue;
    if (!result.add(step_neighbour(neighbour))) return result.get(false);
    done = done && neighbour.sent && neighbour.received;
  }
  return result.get(done);
}

Progress Entry::step_local() {
  const int before = local_seen_;
  while (local_seen_ < transport_.topology().local_size() &&
         transport_.reached(local_seen_, Flag::kEntry, number_ + 1)) {
    OpRecord theirs;
    std::memcpy(&theirs, transport_.segment().operation(local_seen_, number_).record,
                sizeof(theirs));
    if (!(theirs == record_)) return compare(theirs, transport_.topology().global(local_seen_));
    ++local_seen_;
  }
  return local_seen_ > before ? Progress::kMoved : Progress::kBlocked;
}

Progress Entry::step_neighbour(Neighbour& neighbour) {
  Progress sent = Progress::kBlocked;
  if (!neighbour.sent) {
    sent =
        neighbour.sending.send(transport_, *neighbour.link,
                               reinterpret_cast<const std::byte*>(&greeting_), sizeof(greeting_));
    if (sent == Progress::kFailed) return sent;
    neighbour.sent = sent == Progress::kDone;
  }
  if (neighbour.received) return sent == Progress::kBlocked ? sent : Progress::kMoved;
  const Progress received = neighbour.receiving.receive(
      transport_, *neighbour.link, reinterpret_cast<std::byte*>(&neighbour.greeting),
      sizeof(Greeting));
  if (received == Progress::kDone) {
    neighbour.received = true;
    const Rank peer = neighbour.link->peer();
    if (neighbour.greeting.magic != greeting_.magic) {
      return transport_.fail(
          {Errc::kProtocol, peer, fmt::format("rank {} sent bytes that begin no operation", peer)});
    }
    if (!(neighbour.greeting.record == record_)) return compare(neighbour.greeting.record, peer);
  }
  if (received == Progress::kFailed) return received;
  return received == Progress::kBlocked && sent == Progress::kBlocked ? Progress::kBlocked
                                                                      : Progress::kMoved;
}

Progress Entry::compare(const OpRecord& theirs, Rank rank) {
  const Rank self = transport_.topology().rank();
  std::string first = fmt::format("rank {} calls {}", self, describe(record_));
  std::string second = fmt::format("rank {} calls {}", rank, describe(theirs));
  if (theirs.sequence != record_.sequence) {
    first += fmt::format(" as its operation #{}", record_.sequence);
    second += fmt::format(" as its operation #{}", theirs.sequence);
  }
  if (rank < self) std::swap(first, second);
  return transport_.fail(
      {Errc::kMismatch, -1,
       fmt::format("the ranks disagree: {}, {}; all ranks must issue the same operations in the "
                   "same order",
                   first, second)});
}

std::string Entry::missing() const {
  const Topology& topology = transport_.topology();
  std::string arrived;
  std::string absent;
  const auto note = [](std::string& list, Rank rank) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
  };
  for (int local = 0; local < topology.local_size(); ++local) {
    note(transport_.reached(local, Flag::kEntry, number_ + 1) ? arrived : absent,
         topology.global(local));
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.link != nullptr)
      note(neighbour.received ? arrived : absent, neighbour.link->peer());
  }
  return fmt::format("arrived: rank {}; not arrived: rank {}", arrived.empty() ? "-" : arrived,
                     absent.empty() ? "-" : absent);
}

Rank Entry::first_missing() const {
  const Topology& topology = transport_.topology();
  for (int local = 0; local < topology.local_size(); ++local) {
    if (!transport_.reached(local, Flag::kEntry, number_ + 1)) return topology.global(local);
  }
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.link != nullptr && !neighbour.received) return neighbour.link->peer();
  }
  return -1;
}

}  // namespace ddp
