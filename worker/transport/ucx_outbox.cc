#include "worker/transport/ucx_outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace ddp::transport {
namespace {

constexpr std::size_t kCopyBytes = 32 << 10;  // Pieces up to this are copied.
constexpr std::uint64_t kWindow = 1 << 20;    // Copied bytes that may wait at the peer.
constexpr std::size_t kOfferBytes = 1 << 20;  // Size limit of one large message.
constexpr int kOffers = 8;                    // Large messages at a time.

}  // namespace

std::size_t UcxOutbox::send_some(const std::byte* data, std::size_t bytes) {
  DDP_CHECK(posted_ <= bytes, "{} of these bytes are in flight, now {} are given", posted_, bytes);
  std::size_t moved = report();
  while (posted_ < bytes - moved && status_ == UCS_OK &&
         send_next(data + moved + posted_, bytes - moved - posted_)) {
    moved += report();
  }
  tidy();
  return moved;
}

// Posts some of the bytes. Returns false if it has to wait.
bool UcxOutbox::send_next(const std::byte* data, std::size_t bytes) {
  const bool small = bytes <= kCopyBytes;
  if (small ? copied_ + bytes - peer_taken_ > kWindow : offers_ >= kOffers) return false;
  const std::size_t part = small ? bytes : std::min(bytes, kOfferBytes);
  Message& message = messages_.emplace_back();
  message.frame.kind = UcxFrameKind::kData;
  message.frame.sequence = next_sequence_++;
  message.bytes = part;
  posted_ += part;
  if (!small) {
    ++offers_;
    post(message, data, part, UCP_AM_SEND_FLAG_RNDV);
    return true;
  }
  if (spare_.empty()) spare_.emplace_back(new std::byte[kCopyBytes]);
  message.copy = std::move(spare_.back());
  spare_.pop_back();
  std::memcpy(message.copy.get(), data, part);
  message.safe = true;
  copied_ += part;
  post(message, message.copy.get(), part, UCP_AM_SEND_FLAG_EAGER);
  return true;
}

void UcxOutbox::send(UcxFrameKind kind) {
  Message& message = messages_.emplace_back();
  message.frame.kind = kind;
  if (kind == UcxFrameKind::kEnd) message.frame.sequence = next_sequence_++;
  message.safe = true;
  post(message, nullptr, 0, UCP_AM_SEND_FLAG_EAGER);
}

void UcxOutbox::on_taken(std::uint64_t bytes) {
  if (bytes <= peer_taken_) return;
  peer_taken_ = bytes;
  news_ = true;
}

void UcxOutbox::post(Message& message, const void* data, std::size_t bytes, std::uint32_t flags) {
  message.owner = this;
  ++under_way_;
  message.frame.link = link_;
  message.frame.taken = taken_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = &UcxOutbox::on_sent;
  param.user_data = &message;
  param.flags = flags;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  const ucs_status_ptr_t request = worker_.ucx().ucp_am_send_nbx(
      endpoint_, kUcxMessage, &message.frame, sizeof(message.frame), data, bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) finish(message, UCS_PTR_STATUS(request));
}

void UcxOutbox::on_sent(void* request, ucs_status_t status, void* user_data) {
  auto& message = *static_cast<Message*>(user_data);
  UcxOutbox& owner = *message.owner;
  owner.finish(message, status);
  owner.worker_.ucx().ucp_request_free(request);
}

void UcxOutbox::finish(Message& message, ucs_status_t status) {
  --under_way_;
  if (!message.safe) --offers_;
  message.safe = message.done = true;
  news_ = true;
  if (status != UCS_OK && status_ == UCS_OK) status_ = status;
}

std::size_t UcxOutbox::report() {
  std::size_t moved = 0;
  if (status_ != UCS_OK) return 0;
  for (; reported_ < messages_.size() && messages_[reported_].safe; ++reported_)
    moved += messages_[reported_].bytes;
  posted_ -= moved;
  return moved;
}

void UcxOutbox::tidy() {
  // A message whose bytes are not reported yet stays for the next send_some().
  while (!messages_.empty() && messages_.front().done &&
         (reported_ > 0 || messages_.front().bytes == 0)) {
    if (messages_.front().copy) spare_.push_back(std::move(messages_.front().copy));
    messages_.pop_front();
    if (reported_ > 0) --reported_;
  }
}

}  // namespace ddp::transport
