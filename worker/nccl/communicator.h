#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "worker/nccl/device_operation.h"
#include "worker/nccl/library.h"
#include "worker/transport/failure.h"

namespace ddp {

// One ncclComm_t from its making to its end, and the rules for calling NCCL:
//
// * One thread, the communication thread, makes it, puts operations into the stream and closes it.
//   NCCL allows one call at a time on a communicator, so each call holds mutex_.
// * Any thread may ask for an asynchronous error; it does not wait for a call in progress.
// * Any thread may abort. That takes the communicator away from under a call that does not come
//   back, after kCallGrace: with NCCL before 2.14, whose calls block, there is no other way.
//
// Calls do not block: the communicator is made with blocking=0, and a call that NCCL continues in
// the background is polled until it is through, because only then its kernel is in the stream.
// Before NCCL 2.14 making it blocks until all ranks are there, and cannot be interrupted.
//
// The device must be current on every calling thread.
class Communicator {
 public:
  Communicator(std::shared_ptr<const NcclLibrary> library, Rank rank, int size)
      : library_(std::move(library)), rank_(rank), size_(size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // While it gives true the polling of the communication thread ends, with an Outcome of kAborted.
  using Stop = std::function<bool()>;

  // Communication thread. They return when NCCL is through, with its error or because of `stop`.
  Outcome init(const nccl::UniqueId& id, const Stop& stop);
  // On success the operation's kernel is in the stream. `scratch` is device memory for a barrier.
  Outcome enqueue(const DeviceOperation& operation, void* scratch, cuda::Stream stream,
                  const Stop& stop);
  // Ends it in agreement with the other ranks of the node: waits for what they still read from this
  // rank. After a failure the communicator is still there, for abort().
  Outcome close(const Stop& stop);

  // Any thread. Nothing while another call is in progress, and after the end.
  Outcome async_error();
  // Any thread; the first call ends the communicator, later ones do nothing. May block: NCCL waits
  // for its kernels, and for the other ranks of the node to abort, too.
  void abort();

 private:
  Outcome settle(const char* call, nccl::Result result, const Stop& stop);
  Outcome checked_call(const char* call, const std::function<nccl::Result(nccl::Comm)>& function,
                       const Stop& stop);
  Outcome reduce_op(const DeviceOperation& operation, nccl::RedOp& op, const Stop& stop);
  nccl::Result start(const DeviceOperation& operation, nccl::RedOp op, void* scratch,
                     nccl::Comm comm, cuda::Stream stream) const;
  nccl::Result start_group(const DeviceOperation& operation, nccl::RedOp op, nccl::Comm comm,
                           cuda::Stream stream) const;
  Outcome ended() const;

  const std::shared_ptr<const NcclLibrary> library_;
  const Rank rank_;
  const int size_;

  std::mutex mutex_;  // Held during every call on comm_ but the abort of a stuck one.
  std::atomic<nccl::Comm> comm_{nullptr};
  std::atomic<bool> aborted_{false};
};

}  // namespace ddp
