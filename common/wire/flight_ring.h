#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/shared_entry.h"
#include "common/wire/shm_layout.h"

// The last operations and messages of a rank. The rank keeps them at the beginning of its region of
// the node's shared memory (shm_layout.h), so its agent can read them even if the rank has died.
// The worker's half is worker/runtime/flight_recorder.h.
namespace ddp::wire {

// The name of the group of all ranks.
inline constexpr char kWorldGroup[] = "world";
inline constexpr std::uint32_t kFlightMagic = 0x46504444;  // "DDPF"
inline constexpr std::uint32_t kFlightVersion = 2;
inline constexpr std::size_t kFlightEntries = 256;
// Messages have entries of their own, so that many messages do not push out operations, or many
// operations messages.
inline constexpr std::size_t kFlightMessages = 128;
inline constexpr std::size_t kFlightGroups = 32;

enum class FlightState : std::uint32_t { kIssued = 1, kStarted, kDone, kFailed };

// An operation, or a message that a user sends or receives. Texts end with a zero byte unless they
// fill their array. Times are nanoseconds of CLOCK_MONOTONIC on the rank's machine; 0: not yet.
//
// A message starts when its first byte has moved. The start is recorded only if the last byte has
// not moved at the same time. A send ends when the caller may use its buffer again, which may be
// before the receiver has the message.
struct FlightRecord {
  // Counts the operations (or the messages) of the rank in all groups, from 1.
  std::uint64_t number = 0;
  std::uint64_t sequence = 0;  // The same count within the group, from 0.
  std::uint64_t count = 0;     // Elements.
  std::int64_t issued_ns = 0;
  std::int64_t started_ns = 0;
  std::int64_t ended_ns = 0;
  std::uint32_t group = 0;  // Index into FlightRing::names; groups beyond have no name.
  FlightState state = FlightState::kIssued;
  // For an operation: its root, a rank of the group; -1: none. For a message: its peer, a rank of
  // the world.
  std::int32_t root = -1;
  char type[4] = {};
  char operation[16] = {};  // For messages "send" or "recv".
  char tag[24] = {};        // The name that the user gave it.
  std::uint32_t element_bytes = 0;
  std::uint32_t message_tag = 0;  // Only for messages.
};
// Record n, counted from 1, is in entry (n - 1) % kFlightEntries; for messages, % kFlightMessages.
using FlightEntry = SharedEntry<FlightRecord>;

struct FlightGroup {
  std::atomic<std::uint32_t> named{0};  // The name is complete.
  char name[60] = {};
};

// The beginning of a region. If it is all zero, the rank has made no group.
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

// Copies the recorder at `bytes` (kFlightBytes, aligned to a page). The rank may be writing to it
// meanwhile. kNotFound if the rank has made no group, kProtocol if another build wrote it.
Result<Flight> read_flight(const std::byte* bytes);

// One JSON object a line, each ended by a newline, in the order of issued_ns: rank, group, number,
// sequence, operation, type, count, bytes, tag, state, issued_ns, started_ns, ended_ns; of
// operations root, of messages peer and message_tag.
std::string flight_json_lines(const Flight& flight);

}  // namespace ddp::wire
