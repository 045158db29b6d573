#pragma once

#include <atomic>
#include <functional>
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
//   operations into the stream: that one, or a caller that found nothing before its own. NCCL allows
//   one call at a time on a communicator, so each call holds mutex_.
// * Any thread may ask for an asynchronous error; it does not wait for a call in progress.
// * Any thread may abort. After kCallGrace that aborts the communicator even if a call on it has
//   not returned.
//
// Calls do not block: the communicator is created with blocking=0. If NCCL continues a call in the
// background, the caller polls until NCCL has finished, because only then its kernel is in the
// stream.
//
// The device must be current on every calling thread.
class Communicator {
 public:
  Communicator(std::shared_ptr<const NcclLibrary> library, Rank rank, int size)
      : library_(std::move(library)), rank_(rank), size_(size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // When it returns true, the communication thread stops polling, with the Outcome kAborted.
  using Stop = std::function<bool()>;

  // Communication thread. These return when NCCL has finished, with its error, or because of
  // `stop`.
  Outcome init(const nccl::api::UniqueId& id, const Stop& stop);
  // On success the operation's kernel is in the stream. `scratch` is device memory for a barrier.
  Outcome enqueue(const DeviceOperation& operation, void* scratch, cuda::Stream stream,
                  const Stop& stop);
  // Ends the communicator in agreement with the other ranks of the node: waits while they still
  // read from this rank. After a failure the communicator still exists, for abort().
  Outcome close(const Stop& stop);

  // Any thread. Returns nothing while another call is in progress and after the end.
  Outcome async_error();
  // Any thread; the first call ends the communicator, later ones do nothing. May block: NCCL waits
  // for its kernels, and for the other ranks of the node to abort, too.
  void abort();

 private:
  Outcome settle(const char* call, nccl::api::Result result, const Stop& stop);
  Outcome checked_call(const char* call,
                       const std::function<nccl::api::Result(nccl::api::Comm)>& function,
                       const Stop& stop);
  Outcome reduce_op(const DeviceOperation& operation, nccl::api::RedOp& op, const Stop& stop);
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
