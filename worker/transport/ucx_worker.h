#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "worker/transport/ucx_library.h"

namespace ddp::transport {

enum class UcxFrameKind : std::uint32_t {
  kHello = 0,   // The way from the sender to here is open.
  kData = 1,    // The next bytes of the stream.
  kCredit = 2,  // Nothing but `taken`.
  kEnd = 3,     // No more data will come.
};

// The header of every active message. Members in the machine's byte order; the magic number of the
// greeting over TCP detects a different order.
struct UcxFrame {
  std::uint32_t link = 0;  // The receiver's: what add() returned.
  UcxFrameKind kind = UcxFrameKind::kData;
  std::uint32_t sequence = 0;  // Of kData and kEnd, from 0: UCX may deliver small messages early.
  std::uint32_t reserved = 0;
  std::uint64_t taken = 0;  // Buffered bytes of the other direction that the sender has consumed.
};
static_assert(sizeof(UcxFrame) == 24);

// Receives the messages for one link.
class UcxReceiver {
 public:
  virtual ~UcxReceiver() = default;
  // `data` is an address of memory, or UCX's description of data to fetch (attributes has
  // UCP_AM_RECV_ATTR_FLAG_RNDV). Returns what UCX's active message callbacks return.
  virtual ucs_status_t on_frame(const UcxFrame& frame, void* data, std::size_t bytes,
                                std::uint64_t attributes) = 0;
};

// One UCX worker, shared by all links of one rank. Only one thread at a time may use it or anything
// made from it. The context below it (devices, registered memory) belongs to the whole process and
// stays until it ends.
class UcxWorker {
 public:
  static Result<std::shared_ptr<UcxWorker>> create();
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const UcxLibrary& ucx() const { return ucx_; }
  ucp_worker_h get() const { return worker_; }
  // What other workers need to reach it.
  const std::string& address() const { return address_; }
  std::string text_of(ucs_status_t status) const { return ucx_.ucs_status_string(status); }

  // Messages with the number that this returns go to `receiver` until remove().
  std::uint32_t add(UcxReceiver& receiver);
  void remove(std::uint32_t link);

  // Makes all progress that is possible now. Calls receivers and the callbacks of requests.
  void progress() {
    while (ucx_.ucp_worker_progress(worker_) != 0) {
    }
  }
  // Readable when progress() has something to do, if arm() returned true after the last progress().
  int event_fd() const { return event_fd_; }
  bool arm() { return ucx_.ucp_worker_arm(worker_) == UCS_OK; }
  // Sleeps up to `limit` if there is nothing to do, then makes progress. For setup and departure.
  void wait(Duration limit);

 private:
  UcxWorker(const UcxLibrary& ucx, ucp_worker_h worker) : ucx_(ucx), worker_(worker) {}
  Result<void> set_up();
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);

  const UcxLibrary& ucx_;
  ucp_worker_h worker_;
  int event_fd_ = -1;  // Belongs to UCX.
  std::string address_;
  std::map<std::uint32_t, UcxReceiver*> receivers_;
  std::uint32_t next_link_ = 1;
};

constexpr unsigned kUcxMessage = 1;  // The number of our active messages.

}  // namespace ddp::transport
