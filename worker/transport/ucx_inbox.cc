#include "worker/transport/ucx_inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace ddp::transport {
namespace {

constexpr std::size_t kMostAhead = 1 << 20;  // No peer of ours sends that many messages ahead.

}  // namespace

ucs_status_t UcxInbox::on_frame(const UcxFrame& frame, void* data, std::size_t bytes,
                                std::uint64_t attributes) {
  const std::uint32_t ahead = frame.sequence - next_sequence_;
  if (ahead >= kMostAhead) {
    status_ = UCS_ERR_OUT_OF_RANGE;
    return UCS_OK;
  }
  if (messages_.size() <= ahead) messages_.resize(ahead + 1);
  Message& message = messages_[ahead];
  message.owner = this;
  message.bytes = bytes;
  news_ = true;
  if (frame.kind == UcxFrameKind::kEnd) {
    message.state = State::kEnd;
    return UCS_OK;
  }
  message.counts = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  if (message.counts && (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) == 0) {
    message.copy.reset(new std::byte[bytes]);
    std::memcpy(message.copy.get(), data, bytes);
    message.state = State::kCopied;
    return UCS_OK;
  }
  message.data = data;
  message.state = message.counts ? State::kHeld : State::kOffered;
  return UCS_INPROGRESS;
}

std::size_t UcxInbox::receive_some(std::byte* data, std::size_t bytes) {
  DDP_CHECK(placed_ <= bytes, "{} of these bytes are in flight, now {} are asked for", placed_,
            bytes);
  std::size_t moved = report();
  while (placed_ < bytes - moved && status_ == UCS_OK &&
         receive_next(data + moved + placed_, bytes - moved - placed_)) {
    moved += report();
  }
  return moved;
}

// Makes progress on the first message. Returns false if it has to wait.
bool UcxInbox::receive_next(std::byte* data, std::size_t room) {
  if (messages_.empty()) return false;
  Message& message = messages_.front();
  switch (message.state) {
    case State::kMissing:
    case State::kFetching:
      return false;
    case State::kEnd:
      ended_ = true;
      return false;
    case State::kHeld:
    case State::kCopied:
      take_copied(message, data, room);
      break;
    case State::kOffered: {
      if (message.bytes > room) {
        message.copy.reset(new std::byte[message.bytes]);
        message.state = State::kFetching;
        if (fetch(message.data, message.copy.get(), message.bytes, &UcxInbox::on_fetched, &message))
          message.state = State::kCopied;
        return message.state == State::kCopied;
      }
      Landing& landing = landings_.emplace_back(Landing{this, message.bytes, false});
      placed_ += landing.bytes;
      if (fetch(message.data, data, message.bytes, &UcxInbox::on_landed, &landing))
        landing.done = true;
      message.used = message.bytes;
    }
  }
  if (message.used == message.bytes) {
    messages_.pop_front();
    ++next_sequence_;
  }
  return true;
}

void UcxInbox::take_copied(Message& message, std::byte* data, std::size_t room) {
  const std::size_t part = std::min(room, message.bytes - message.used);
  const std::byte* from =
      message.copy ? message.copy.get() : static_cast<const std::byte*>(message.data);
  std::memcpy(data, from + message.used, part);
  message.used += part;
  placed_ += part;
  if (landings_.empty()) {
    ready_ += part;
  } else {
    landings_.push_back({this, part, true});
  }
  if (message.used < message.bytes) return;
  if (message.state == State::kHeld) worker_.ucx().ucp_am_data_release(worker_.get(), message.data);
  if (message.counts) taken_ += message.bytes;
}

// Returns whether it is done already; then `done` is not called.
bool UcxInbox::fetch(void* description, void* target, std::size_t bytes,
                     ucp_am_recv_data_nbx_callback_t done, void* argument) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = done;
  param.user_data = argument;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  ++fetching_;
  const ucs_status_ptr_t request =
      worker_.ucx().ucp_am_recv_data_nbx(worker_.get(), description, target, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return false;
  finish(UCS_PTR_STATUS(request));
  return true;
}

void UcxInbox::finish(ucs_status_t status) {
  --fetching_;
  news_ = true;
  if (status != UCS_OK && status_ == UCS_OK) status_ = status;
}

void UcxInbox::on_landed(void* request, ucs_status_t status, std::size_t /*bytes*/,
                         void* argument) {
  auto& landing = *static_cast<Landing*>(argument);
  landing.done = true;
  landing.owner->finish(status);
  landing.owner->worker_.ucx().ucp_request_free(request);
}

void UcxInbox::on_fetched(void* request, ucs_status_t status, std::size_t /*bytes*/,
                          void* argument) {
  auto& message = *static_cast<Message*>(argument);
  message.state = State::kCopied;
  message.owner->finish(status);
  message.owner->worker_.ucx().ucp_request_free(request);
}

std::size_t UcxInbox::report() {
  if (status_ != UCS_OK) return 0;
  std::size_t moved = std::exchange(ready_, 0);
  for (; !landings_.empty() && landings_.front().done; landings_.pop_front())
    moved += landings_.front().bytes;
  placed_ -= moved;
  return moved;
}

void UcxInbox::release() {
  for (Message& message : messages_) {
    if (message.state == State::kHeld || message.state == State::kOffered)
      worker_.ucx().ucp_am_data_release(worker_.get(), message.data);
    if (message.state != State::kFetching) message.state = State::kMissing;
  }
}

}  // namespace ddp::transport
