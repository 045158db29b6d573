#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "worker/nccl/device_operation.h"
#include "worker/nccl/library.h"
#include "worker/nccl/nccl_api.h"
#include "worker/transport/failure.h"

namespace ddp::nccl {

// Owns one ncclComm_t from its creation to its end. The rules for calling NCCL:
//
// * One thread, the communication thread, creates it and closes it. One thread at a time puts
//   operations into the stream: that one, or a caller that found nothing before its own. NCCL
//   allows one call at a time on a communicator, so each call holds mutex_.
// * Any thread may ask for an asynchronous error; it does not wait for a call in progress.
// * Any thread may abort. After kCallGrace that aborts the communicator even if a call on it has
//   not returned.
//
// When a call returns, its kernel is in the stream. That takes microseconds, but for the first
// operation of a kind, in which NCCL connects the ranks, until all of them have begun it. NCCL
// could also finish calls in the background (blocking=0), so that init() could be aborted; but then
// it starts a thread for every operation (2.28.9 on an H100: 222 us in place of 65).
//
// The device must be current on every calling thread.
class Communicator {
 public:
  Communicator(std::shared_ptr<const NcclLibrary> library, Rank rank, int size)
      : library_(std::move(library)), rank_(rank), size_(size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Communication thread. Cannot be aborted: returns when all ranks have called it, or when NCCL
  // sees that one of them is gone.
  Outcome init(const nccl::api::UniqueId& id);
  // On success the operation's kernel is in the stream. `scratch` is device memory for a barrier.
  Outcome enqueue(const DeviceOperation& operation, void* scratch, cuda::Stream stream);
  // Ends the communicator in agreement with the other ranks of the node: waits while they still
  // read from this rank. After a failure the communicator still exists, for abort().
  Outcome close();

  // Any thread. Returns nothing while another call is in progress and after the end.
  Outcome async_error();
  // Any thread; the first call ends the communicator, later ones do nothing. May block: NCCL waits
  // for its kernels, and for the other ranks of the node to abort, too.
  void abort();

 private:
  Outcome checked(const char* call, nccl::api::Result result) const;
  template <typename Call>
  Outcome checked_call(const char* name, const Call& call);
  Outcome reduce_op(const DeviceOperation& operation, nccl::api::RedOp& op);
  nccl::api::Result start(const DeviceOperation& operation, nccl::api::RedOp op, void* scratch,
                          nccl::api::Comm comm, cuda::Stream stream) const;
  nccl::api::Result start_group(const DeviceOperation& operation, nccl::api::RedOp op,
                                nccl::api::Comm comm, cuda::Stream stream) const;
  Outcome ended() const;

  const std::shared_ptr<const NcclLibrary> library_;
  const Rank rank_;
  const int size_;

  std::mutex mutex_;  // Held during every call on comm_, except the abort of a stuck one.
  std::atomic<nccl::api::Comm> comm_{nullptr};
  std::atomic<bool> aborted_{false};
};

}  // namespace ddp::nccl
