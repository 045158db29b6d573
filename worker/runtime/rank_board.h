#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker/runtime/meeting.h"
#include "worker/transport/failure.h"

namespace ddp::runtime {

// What the ranks of a group that is being made tell each other through its store. Holds the store
// as long as it lives. One thread.
class RankBoard {
 public:
  // what: what is being made, for messages: "the process group of round 0".
  RankBoard(const Meeting& meeting, int world_size, std::string what, TimePoint deadline);

  // Both prepend the group's prefix. read() waits until the deadline, or until the round is over
  // (WaitInterrupt). kTimeout names the ranks that are missing.
  Outcome publish(const std::string& key, const std::string& value);
  Outcome read(const std::string& key, std::string& value);
  // The values of several keys, in one request.
  Outcome read(const std::vector<std::string>& keys, std::vector<std::string>& values);
  // Every rank gets what `count` of them tell: element i is the text of the one whose `index` is i.
  // index: -1 for a rank that tells nothing. Index 0 reads the others' texts and makes one value of
  // them, so the number of requests grows as the number of ranks does. Fails as read().
  Outcome exchange(const std::string& name, int index, int count, const std::string& own,
                   std::vector<std::string>& all);
  // Whether the key is there already.
  bool has(const std::string& key);

  // From now on, a rank counts as missing if "/<presence>/<rank>" is not there.
  void expect(std::string presence) { presence_ = std::move(presence); }
  Failure explain(const Error& error);
  TimePoint deadline() const { return deadline_; }

 private:
  Duration left() const;
  // Of the ranks from `begin` up to, but not including `end`.
  Result<bool> are_present(Rank begin, Rank end);
  Failure missing(const std::string& reason);

  const std::shared_ptr<std::mutex> in_use_;
  const std::unique_lock<std::mutex> lock_;  // Let go before what it locks.
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int world_size_;
  const std::string what_;
  const TimePoint deadline_;
  std::string presence_;
};

}  // namespace ddp::runtime
