#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/store/store.h"
#include "worker/transport/failure.h"

namespace ddp {

// Takes the first failure of a round to its other ranks through a key of a store, which all of them
// look at every `interval`: what NCCL itself does not do. One small request per rank and interval.
//
// Its thread, ddp-nccl-relay, alone uses the store, which therefore is a connection of its own. A
// store that fails ends the relay quietly: whoever serves it has gone, and the ranks have their
// deadlines.
class AbortRelay {
 public:
  // on_told: called once, by the relay's thread, with what another rank has told.
  AbortRelay(std::shared_ptr<Store> store, std::string key, std::chrono::milliseconds interval,
             std::function<void(const Failure&)> on_told);
  AbortRelay(const AbortRelay&) = delete;
  AbortRelay& operator=(const AbortRelay&) = delete;
  // Tells what is still to be told; waits for a request of the store that is under way.
  ~AbortRelay();

  // Any thread; returns at once. Only the first call of all ranks counts.
  void tell(const Failure& failure);

 private:
  // Kept by the thread, too, because on_told may end the relay.
  struct Shared {
    std::shared_ptr<Store> store;
    std::string key;
    std::chrono::milliseconds interval;
    std::function<void(const Failure&)> on_told;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Failure> to_tell;
    bool stopping = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace ddp
