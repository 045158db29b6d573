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

namespace ddp::nccl {

// Reports the first failure of a round to its other ranks, which NCCL itself does not do. It writes
// a key of a store, which all ranks read every `interval`: one small request per rank and interval.
//
// Only its thread, ddp-nccl-relay, uses the store, so the store must be a connection of its own. If
// the store fails, the relay ends quietly: its server is gone, and the ranks still have their
// deadlines.
class AbortRelay {
 public:
  // on_told: called once, by the relay's thread, with the failure that another rank reported.
  AbortRelay(std::shared_ptr<Store> store, std::string key, std::chrono::milliseconds interval,
             std::function<void(const Failure&)> on_told);
  AbortRelay(const AbortRelay&) = delete;
  AbortRelay& operator=(const AbortRelay&) = delete;
  // Reports a failure that is still to be reported; waits for a store request in progress.
  ~AbortRelay();

  // Any thread; returns at once. Only the first call among all ranks counts.
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

}  // namespace ddp::nccl
