#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/host_port.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "launcher/replicas/raft_message.h"

namespace ddp::replicas {

// The sender coordinates the job, or knows a group that has begun it.
struct Announcement {
  std::uint64_t term = 0;  // Later coordinators of a group have larger ones.
  Round next_round = 0;    // The first number that no round has used.
  bool coordinates = true;
  bool has_your_agent = false;  // The receiver's node takes part there.

  friend bool operator==(const Announcement&, const Announcement&) = default;
};

// What the coordinator knows of the job beyond its record, for the next one. Nobody depends on it.
struct History {
  std::uint64_t term = 0;  // As in Announcement.
  std::string text{};

  friend bool operator==(const History&, const History&) = default;
};

// What the ddp-runs of a job send each other. One frame of a rendezvous connection (PROTOCOL.md).
struct ReplicaMessage {
  std::string job_id{};
  MemberId group = 0;  // The member that has founded the sender's group.
  MemberId from = 0;
  std::uint64_t number = 0;  // Grows from each message of a sender to the next.
  HostPort at{};             // Where the sender is reached.
  // One of these.
  std::optional<RaftMessage> raft{};
  std::optional<Announcement> announcement{};
  std::optional<History> history{};

  friend bool operator==(const ReplicaMessage&, const ReplicaMessage&) = default;
};

std::string encode(const ReplicaMessage& message);
// kProtocol, with the reason, for any other bytes.
Result<ReplicaMessage> decode_replica_message(std::string_view payload);

}  // namespace ddp::replicas
