#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

// What the members of a Raft group send each other (Ongaro and Ousterhout, "In Search of an
// Understandable Consensus Algorithm", 2014, figure 2). libraft fills the fields in and reads them.
// They are JSON, so that members with different releases of libraft understand each other.
namespace ddp::replicas {

using MemberId = std::uint64_t;  // Never 0; never used twice in a job.

struct RaftEntry {
  std::uint64_t term = 0;
  int type = 0;
  std::string data;  // Any bytes.

  friend bool operator==(const RaftEntry&, const RaftEntry&) = default;
};

struct RaftMessage {
  enum class Kind {  // Numbered as in libraft.
    kAppend = 1,
    kAppendResult = 2,
    kVote = 3,
    kVoteResult = 4,
    kTimeoutNow = 6,
  };
  Kind kind = Kind::kAppend;
  std::uint64_t term = 0;
  // The log index and term that the kind has: of the entry before the new ones, of the sender's
  // last entry, or, in an answer to kAppend, the index that was rejected (0: none) and the last
  // one.
  std::uint64_t index = 0;
  std::uint64_t index_term = 0;
  std::uint64_t last_index = 0;
  std::uint64_t commit_index = 0;    // kAppend
  std::vector<RaftEntry> entries{};  // kAppend
  bool granted = false;              // kVoteResult
  bool pre_vote = false;             // kVote, kVoteResult
  bool disrupt_leader = false;       // kVote
  int features = 0;                  // Answers of libraft 0.18 and newer.
  int capacity = 0;

  friend bool operator==(const RaftMessage&, const RaftMessage&) = default;
};

void to_json(nlohmann::json& json, const RaftMessage& message);
// Throws nlohmann::json::exception or std::invalid_argument for anything else.
void from_json(const nlohmann::json& json, RaftMessage& message);

}  // namespace ddp::replicas
