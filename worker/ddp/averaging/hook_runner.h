#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"

namespace ddp {

// Runs a communication hook on the buckets of one reduction after the other and waits for what it
// returns. Used by one thread at a time; after an exception drain() makes it ready for the next
// reduction. A steady reduction allocates nothing but what the hook does.
class HookRunner {
 public:
  // Runs the hook on a bucket. Buckets and their tags live until finish() or drain() has returned.
  // What the hook throws leaves as std::runtime_error that names hook and bucket, but for
  // CollectiveError, which goes through.
  void start(CommHook& hook, GradBucket& bucket, const std::string& tag);

  // Waits for all that was started: stage by stage, within a stage in the order of the starts, so
  // that all ranks issue the operations of the continuations in the same order. Then every bucket
  // has its first buffer again, with the hook's result in it. Throws as start(), and
  // std::invalid_argument for a result that is no gradient of this bucket,
  // naming hook and bucket.
  void finish();

  // Waits until no operation uses memory of the buckets or of the hook any more, and gives the
  // buckets their buffers back. Their content is undefined. Never throws on behalf of operations.
  void drain();

 private:
  struct Running {
    CommHook* hook = nullptr;
    GradBucket* bucket = nullptr;
    const std::string* tag = nullptr;
    at::Tensor buffer;  // What the bucket had before the hook ran.
    Future future;
    bool is_done = false;
  };
  static void give_back_buffer(const Running& running);
  static void land(Running& running);
  [[noreturn]] static void rethrow(const Running& running);

  std::vector<Running> running_;
};

}  // namespace ddp
