#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"

namespace ddp {

// For a register_comm_hook: throws std::invalid_argument if `hook` is null, std::logic_error if one
// is `present`.
void check_new_hook(const CommHook* hook, const CommHook* present);

// Runs a communication hook on the buckets of each reduction and waits for the futures that it
// returns. Used by one thread at a time. After an exception, drain() makes it ready for the next
// reduction. In a steady state only the hook allocates.
class HookRunner {
 public:
  // Runs the hook on a bucket. The bucket and its tag must live until finish() or drain() has
  // returned. If the hook throws, throws std::runtime_error naming the hook and the bucket; a
  // CollectiveError passes through.
  void start(CommHook& hook, GradBucket& bucket, const std::string& tag);

  // Waits for everything that was started: stage by stage, and within a stage in the order of
  // start(). So all ranks issue the operations of the continuations in the same order. Afterwards
  // every bucket has its original buffer again, with the hook's result in it. Throws as start()
  // does, and std::invalid_argument naming the hook and the bucket if the result does not fit the
  // bucket.
  void finish();

  // Waits until no operation uses memory of the buckets or of the hook any more, and gives the
  // buckets their original buffers back, with undefined content. Failed operations do not make it
  // throw.
  void drain();

 private:
  struct Running {
    CommHook* hook = nullptr;
    GradBucket* bucket = nullptr;
    const std::string* tag = nullptr;
    at::Tensor buffer;  // The bucket's buffer before the hook ran.
    Future future;
    bool is_done = false;
  };
  static void give_back_buffer(const Running& running);
  static void land(Running& running);
  [[noreturn]] static void rethrow(const Running& running);

  std::vector<Running> running_;
};

}  // namespace ddp
