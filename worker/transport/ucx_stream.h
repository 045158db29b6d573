#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "worker/transport/connection.h"
#include "worker/transport/data_stream.h"
#include "worker/transport/ucx_inbox.h"
#include "worker/transport/ucx_outbox.h"
#include "worker/transport/ucx_worker.h"

namespace ddp::transport {

// Data over UCX: active messages between two UcxWorkers, in which the network fetches large pieces
// from memory to memory by itself.
//
// The two ends exchange addresses over an established connection, which stays open. When it ends,
// the peer has ended, even if the network's own transports do not notice.
//
// A stream that is destroyed without close() first waits until its last bytes are sent, for at most
// a second. An end that the peer did not announce in its last message is a failure, but what
// arrived before it can still be received.
class UcxStream : public DataStream, private UcxReceiver {
 public:
  UcxStream(std::shared_ptr<UcxWorker> worker, Connection connection);
  ~UcxStream() override;

  Result<void> establish(TimePoint deadline) override;
  ssize_t send_some(const std::byte* data, std::size_t bytes) override;
  ssize_t receive_some(std::byte* data, std::size_t bytes) override;
  int poll_entries(pollfd* entries) override;
  int idle_poll_entries(pollfd* entries) override;
  void close() override;

 private:
  ucs_status_t on_frame(const UcxFrame& frame, void* data, std::size_t bytes,
                        std::uint64_t attributes) override;
  Result<void> greet();
  Result<void> read_greeting(std::string& address, std::uint32_t& link, TimePoint deadline);
  Result<void> open_endpoint(const std::string& address, std::uint32_t link);
  void tell_taken();
  bool broken();
  void look_at_connection();
  int watch(pollfd* entries, bool something_to_do);
  void flush(TimePoint limit);
  void end_endpoint();
  bool finished(ucs_status_ptr_t request) const;

  std::shared_ptr<UcxWorker> worker_;
  Connection connection_;
  UniqueFd watched_;  // An epoll set: the worker's events and the connection, until that ends.
  std::uint32_t link_;
  ucp_ep_h endpoint_ = nullptr;
  UcxOutbox outbox_;
  UcxInbox inbox_;
  std::uint64_t told_taken_ = 0;
  ucs_status_t endpoint_status_ = UCS_OK;
  TimePoint gone_since_{};  // When the connection was found to have ended.
  bool gone_ = false;
  bool look_ = false;  // The connection may have ended.
  bool greeted_ = false;
  unsigned blocked_ = 0;
};

}  // namespace ddp::transport
