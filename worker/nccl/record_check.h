#pragma once

#include <memory>
#include <string>

#include "worker/nccl/device_operation.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"

namespace ddp {

// NCCL hangs, or adds up the wrong bytes, if ranks call different operations. This class compares
// what they are about to call over a host group, which must be used for nothing else. It costs a
// host collective for each operation, so use it to find a mistake, not in production.
//
// compare() is for the communication thread, abort() for any thread.
class RecordCheck {
 public:
  explicit RecordCheck(std::shared_ptr<ProcessGroup> host) : host_(std::move(host)) {}

  // Collective. kMismatch, with the same text on all ranks, says what rank 0 calls and what the
  // first differing rank calls. If a rank does not arrive, the host group times out.
  Outcome compare(const DeviceOperation& operation);
  // Ends a compare() that waits, on all ranks.
  void abort(const std::string& reason) { host_->abort(reason); }

  const std::shared_ptr<ProcessGroup>& host() const { return host_; }

 private:
  void wait_for_all(const OpOptions& options);

  const std::shared_ptr<ProcessGroup> host_;
};

}  // namespace ddp
