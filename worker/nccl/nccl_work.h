#pragma once

#include "worker/nccl/transfer.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The Work of an NcclGroup; what a method of the group returns can be cast to it. Any thread.
// done() learns of completion when the watchdog (every 5 ms) or a wait() looks. wait() waits on the
// host until the device has finished the operation.
//
// If the caller's stream was capturing a graph at the issue, the operation becomes part of the
// graph and runs each time that the graph is launched. The Work is done when it has been recorded;
// wait() says nothing about a launch. wait_stream() must join a stream of the capture before the
// capture ends. Until then, every operation of the group must belong to the capture.
class NcclWork : public Work {
 public:
  // Orders the stream behind the operation: work put into the stream afterwards sees the result.
  // The host waits only until the operation is in the group's own stream. Throws CollectiveError if
  // it has failed by then. After a later failure the stream goes on with undefined contents, so
  // call wait() before you trust the result.
  virtual void wait_stream(cuda::Stream stream) = 0;
};

}  // namespace ddp
