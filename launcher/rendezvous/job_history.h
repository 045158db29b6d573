#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/curve.h"

namespace ddp::rendezvous {

// What a job has been through since this coordinator knows it, or since the first one of those that
// have told their successors: its rounds, what each loss cost, its checkpoints, and curves of its
// training. Bounded: kMaxRounds rounds, kMaxCheckpoints checkpoints and three curves.
class JobHistory {
 public:
  static constexpr std::size_t kMaxRounds = 1'000;
  static constexpr std::size_t kMaxCheckpoints = 200;

  struct RoundRecord {
    Round round = kNoRound;
    std::size_t nodes = 0;
    int world_size = 0;
    // Why it began; empty if an earlier coordinator has begun it and has not told why.
    std::string reason;
    // Since the job began. What has not happened yet is empty.
    Duration began{0};
    std::optional<Duration> first_step = {};  // When its first step was known here.
    std::optional<Duration> ended = {};
    std::string end = {};          // Why it ended.
    std::int64_t from_step = -1;   // The first step that was reported; -1: none.
    std::int64_t until_step = -1;  // The largest.
  };

  struct CheckpointRecord {
    std::int64_t step = -1;
    Round round = kNoRound;
    Duration written{0};     // Since the job began: when its last share was known here.
    int shares = 0;          // How many ranks have written theirs.
    std::int64_t bytes = 0;  // Of all shares.
    double seconds = 0;      // The slowest share took so long.
    bool published = false;
    std::string error = {};  // Of the first share that was not written; empty: all were.
  };

  explicit JobHistory(TimePoint began) : began_(began) {}
  // The history of which an earlier coordinator has told in facts(). `told`: when it did. Throws
  // nlohmann::json::exception if it is none.
  static JobHistory restored(const nlohmann::json& facts, TimePoint told);

  // The round that an earlier coordinator has begun may begin again here, because it goes on.
  void begin_round(TimePoint now, Round round, std::size_t nodes, int world_size,
                   const std::string& reason);
  // A step of the round that began last.
  void step(TimePoint now, std::int64_t step);
  // Only the first end of a round counts.
  void end_round(TimePoint now, const std::string& why);
  // A rank has written its share of a checkpoint, or has failed to.
  void saved(TimePoint now, const wire::SavedShare& share);
  // What the node with rank 0 has told; NaN: not known, or told before.
  void sample(TimePoint now, double loss, double samples_per_second, double steps_per_second);

  TimePoint began() const { return began_; }
  const std::deque<RoundRecord>& rounds() const { return rounds_; }
  std::size_t forgotten() const { return forgotten_; }  // Rounds before these.
  const std::deque<CheckpointRecord>& checkpoints() const { return checkpoints_; }
  // An object with "elapsed_ms", "rounds", "forgotten_rounds", "checkpoints" and "curves". `now`:
  // if the job is over, when it ended.
  nlohmann::json facts(TimePoint now) const;

 private:
  Duration since_began(TimePoint now) const {
    return std::chrono::duration_cast<Duration>(now - began_);
  }

  TimePoint began_;
  std::optional<Duration> told_;    // Of a restored one. Since the job began.
  std::deque<RoundRecord> rounds_;  // Oldest first.
  std::size_t forgotten_ = 0;
  std::deque<CheckpointRecord> checkpoints_;  // Likewise.
  Curve loss_;
  Curve samples_per_second_;
  Curve steps_per_second_;
};

}  // namespace ddp::rendezvous
