#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock_offset.h"
#include "agent/core/trace_text.h"
#include "agent/process/round_memory.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "common/wire/trace_ring.h"

namespace ddp::agent {

// What this node's workers do, for whoever asks the coordinator for a trace. While it is on, the
// workers write spans into the round's memory (common/wire/trace_ring.h), and this reads them, also
// those of workers that have been killed. It is on for kLease after each question; then somebody
// has to call expire(). One thread.
class TraceReader {
 public:
  static constexpr Duration kLease{3'000};
  // Of one answer. An event takes some 200 bytes, and a message has at most 16 MiB.
  static constexpr std::size_t kMostSpans = 4'096;

  // `host`: this node's name for people. `clock`: see clock_name().
  TraceReader(std::string host, std::string clock);
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  // The memory must live until end_round(), which reads what is left in it.
  void begin_round(const RoundMemory& memory, Round round, Rank first_rank);
  void end_round();
  // This rank's share of a checkpoint has been written, in so many seconds until now.
  void saved(Rank rank, const wire::SavedShare& share);

  // Turns the trace on, or keeps it on.
  wire::TraceEvents answer(TimePoint now, const wire::ReadTrace& question);
  // Turns the trace off if the last question is old.
  void expire(TimePoint now);
  // What nobody has been told yet; nothing while the trace is off. `final`: the workers of the
  // round have ended.
  std::optional<wire::TraceEvents> rest(TimePoint now, bool final);

 private:
  // The spans of one rank that were read, in one round.
  struct RankRing {
    MappedPart trace;
    MappedPart flight;  // The names of its groups.
    Rank rank = 0;
    std::uint64_t read = 0;
    const wire::TraceRing& ring() const {
      return *reinterpret_cast<const wire::TraceRing*>(trace.bytes());
    }
  };
  struct KnownSpan {
    Rank rank = 0;
    Round round = 0;
    std::string group;
    wire::TraceSpan span;
  };

  void switch_to(bool on);
  void map_rings();
  void read_rings(bool final);
  wire::TraceEvents take_known();

  const std::string host_;
  const std::string clock_;
  bool on_ = false;
  TimePoint until_;
  std::string asked_by_;  // The clock of the coordinator that asked last.
  ClockOffset offset_;
  std::int64_t shift_ns_ = 0;  // From this machine's clock to the trace's.
  TraceText text_;
  const RoundMemory* memory_ = nullptr;  // Null: no round runs here.
  Round round_ = kNoRound;
  Rank first_rank_ = 0;
  std::vector<RankRing> rings_;  // While it is on and a round runs.
  std::deque<KnownSpan> known_;  // Not told yet.
  std::uint64_t lost_ = 0;       // Likewise.
  double fill_ = 0;              // TraceEvents::fill of the next answer.
};

}  // namespace ddp::agent
