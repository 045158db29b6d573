#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/store/store.h"
#include "worker/nccl/library.h"
#include "worker/nccl/nccl_api.h"
#include "worker/transport/failure.h"

namespace ddp::nccl {

// A failure as bytes, for a store's value. decode_failure() sets Failure::told.
std::string encode_failure(const Failure& failure);
Failure decode_failure(const std::string& bytes);

// How the ranks of one group meet through a store: keys "ddp_nccl/<round>/<name>/...". Each name is
// used once in a round.
//
//   id            NCCL's unique id, made and set by rank 0
//   arrived/R     rank R is about to connect
//   arrivals      how many ranks are; all: set by the last of them
//   failed        the first rank that cannot says why
//   <call>/...    colors of a split, arrivals at a monitored barrier
//
// As thread safe as the store.
class NcclRendezvous {
 public:
  NcclRendezvous(std::shared_ptr<Store> store, Round round, std::string name, Rank rank, int size);

  // Rank 0 makes the id; the others read it. Returns when all ranks have come. A failure, here or
  // on another rank, names the rank: kTimeout names those that have not; kExists says that the
  // group's name was used before.
  Outcome exchange_id(const NcclLibrary& library, TimePoint deadline,
                      std::chrono::milliseconds timeout, nccl::api::UniqueId& id);
  // The failure that another rank reported; nothing if none did or if the store does not answer.
  Outcome told_failure();
  // Reports this rank's failure. Only the first one counts.
  void tell(const Failure& failure);
  // The failure of a rank that waited in vain for the others; names those that have not arrived.
  Failure not_connected(std::chrono::milliseconds timeout);

  // Returns every rank's value, by rank. `call` names this exchange, uniquely within the group.
  Result<std::vector<std::string>> gather(const std::string& call, const std::string& value,
                                          TimePoint deadline);
  // As ProcessGroup::monitored_barrier.
  Outcome monitored_barrier(const std::string& call, std::chrono::milliseconds timeout,
                            bool wait_all_ranks);

  // The key that AbortRelay watches.
  std::string key(const std::string& rest) const { return prefix_ + rest; }

 private:
  Outcome publish_id(const NcclLibrary& library, nccl::api::UniqueId& id);
  Outcome read_id(TimePoint deadline, std::chrono::milliseconds timeout, nccl::api::UniqueId& id);
  Outcome await_all(TimePoint deadline, std::chrono::milliseconds timeout);
  Failure store_failure(const Error& error) const;
  Outcome collect_arrivals(const std::string& call, std::chrono::milliseconds timeout,
                           bool wait_all_ranks);
  std::string group_text() const;

  const std::shared_ptr<Store> store_;
  const Round round_;
  const std::string name_;
  const std::string prefix_;
  const Rank rank_;
  const int size_;
};

}  // namespace ddp::nccl
