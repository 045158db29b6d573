#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/shm_layout.h"

// The last operations and messages of a rank, as it leaves them at the beginning of its region of
// the node's memory (shm_layout.h), where its agent finds them whatever became of the rank. The
// worker's half is worker/runtime/flight_recorder.h.
namespace ddp::wire {

inline constexpr std::uint32_t kFlightMagic = 0x46504444;  // "DDPF"
inline constexpr std::uint32_t kFlightVersion = 2;
inline constexpr std::size_t kFlightEntries = 256;
// Apart, so that neither many messages nor many operations push out the others.
inline constexpr std::size_t kFlightMessages = 128;
inline constexpr std::size_t kFlightGroups = 32;

enum class FlightState : std::uint32_t { kIssued = 1, kStarted, kDone, kFailed };

// An operation, or a message that a user sends or receives. Texts end with a zero byte unless they
// fill their array. Times are nanoseconds of CLOCK_MONOTONIC on the rank's machine; 0: not yet.
//
// A message starts when the first of its bytes has moved; that is noted only where the last one has
// not moved by then, too. A send ends when its buffer is the caller's again, which may be before
// the receiver has it.
struct FlightRecord {
  // Operations, or messages, of the rank before it, of all groups, plus 1.
  std::uint64_t number = 0;
  std::uint64_t sequence = 0;  // The same, of the group, not plus 1.
  std::uint64_t count = 0;     // Elements.
  std::int64_t issued_ns = 0;
  std::int64_t started_ns = 0;
  std::int64_t ended_ns = 0;
  std::uint32_t group = 0;  // Index into the names; greater ones have no name.
  FlightState state = FlightState::kIssued;
  std::int32_t root =
      -1;  // In the group's numbers; -1: none. Of a message its peer, in the world's.
  char type[4] = {};
  char operation[16] = {};  // Of messages "send" and "recv".
  char tag[24] = {};        // What the user calls it.
  std::uint32_t element_bytes = 0;
  std::uint32_t message_tag = 0;  // Of a message.
};
inline constexpr std::size_t kFlightWords = sizeof(FlightRecord) / sizeof(std::uint64_t);
static_assert(sizeof(FlightRecord) == kFlightWords * sizeof(std::uint64_t));

// One writer at a time: whoever makes `version` odd, which is even again when it is through. A
// reader takes the words if it finds the same even version before and after. Record n, counted from
// 1, lies in entry (n - 1) % kFlightEntries; of messages, % kFlightMessages.
struct FlightEntry {
  std::atomic<std::uint32_t> version{0};
  std::uint32_t reserved = 0;
  std::atomic<std::uint64_t> words[kFlightWords] = {};
};

struct FlightGroup {
  std::atomic<std::uint32_t> named{0};  // The name is complete.
  char name[60] = {};
};

// What begins a region. Zero bytes mean that the rank has made no group.
struct FlightRing {
  std::atomic<std::uint32_t> magic{0};  // Set last of the four.
  std::uint32_t version = 0;
  std::int32_t rank = -1;  // Of the world.
  std::int32_t pid = 0;
  std::atomic<std::uint64_t> records{0};   // Begun so far.
  std::atomic<std::uint64_t> messages{0};  // Begun so far.
  std::atomic<std::uint32_t> groups{0};    // Begun so far.
  alignas(64) FlightGroup names[kFlightGroups];
  alignas(64) FlightEntry entries[kFlightEntries];
  alignas(64) FlightEntry message_entries[kFlightMessages];
};
static_assert(sizeof(FlightRing) <= kFlightBytes);

// ---- for readers ----

struct Flight {
  Rank rank = -1;
  int pid = 0;
  std::vector<std::string> groups;     // Names.
  std::vector<FlightRecord> records;   // Oldest first; those that were being written are missing.
  std::vector<FlightRecord> messages;  // Likewise.

  std::string group_name(std::uint32_t group) const;
};

std::string operation_of(const FlightRecord& record);
std::string tag_of(const FlightRecord& record);
inline std::uint64_t bytes_of(const FlightRecord& record) {
  return record.count * record.element_bytes;
}

// A copy of what lies at `bytes` (kFlightBytes, aligned to a page), whoever is writing to it
// meanwhile. kNotFound if the rank has made no group, kProtocol if it is of another build.
Result<Flight> read_flight(const std::byte* bytes);

// One JSON object a line, each ended by a newline, in the order of issued_ns: rank, group, number,
// sequence, operation, type, count, bytes, tag, state, issued_ns, started_ns, ended_ns; of
// operations root, of messages peer and message_tag.
std::string flight_json_lines(const Flight& flight);

}  // namespace ddp::wire
