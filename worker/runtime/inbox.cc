#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errc.h"
#include "worker/collectives/operation.h"
#include "worker/runtime/post_office.h"

namespace ddp::runtime {
namespace {

constexpr int kPullMessages = 64;  // Limits per turn of one peer.
constexpr std::size_t kPullBytes = std::size_t{1} << 20;
constexpr std::size_t kAbortBytes = 4096;  // Longest text.

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::string tag_text(std::uint64_t tag) {
  return tag < kInternalTags ? fmt::format(" with tag {}", tag) : "";
}

}  // namespace

void Inbox::post(MessageWork& recv) {
  if (!claim_any(recv)) posted_.push_back(&recv);
}

bool Inbox::claim_any(MessageWork& recv) {
  const auto item = std::find_if(arrived_.begin(), arrived_.end(), [&](const Item& each) {
    return each.header.tag == recv.tag && each.header.kind != MessageKind::kAbort;
  });
  if (item == arrived_.end()) return false;
  recv.source = peer_;
  if (agree(recv, item->header)) claim(recv, item);
  return true;
}

bool Inbox::wanted() const { return pending() || room_.awaits_any(); }

MessageWork* Inbox::take_posted(std::uint64_t tag) {
  const auto recv = std::find_if(posted_.begin(), posted_.end(),
                                 [&](const MessageWork* each) { return each->tag == tag; });
  if (recv == posted_.end()) return room_.take_any(tag, peer_);
  MessageWork* const found = *recv;
  posted_.erase(recv);
  return found;
}

// Returns whether both ranks agree; if not, fails the group.
bool Inbox::agree(const MessageWork& recv, const MessageHeader& header) {
  const auto type = static_cast<std::uint32_t>(recv.buffer.type);
  if (header.count == recv.buffer.count && header.type == type) return true;
  room_.break_down(
      {Errc::kMismatch, -1,
       fmt::format("{}: rank {} sent {} {}{}, but rank {} expects {} {}", recv.name(), peer_,
                   header.count, name_of(static_cast<DType>(header.type)), tag_text(header.tag),
                   self_, recv.buffer.count, name_of(recv.buffer.type))});
  return false;
}

void Inbox::claim(MessageWork& recv, Items::iterator item) {
  if (item->header.kind == MessageKind::kDirect) {
    start(recv, item->header);
  } else if (item->complete) {
    const std::byte* from = item->local != nullptr ? item->local->bytes() : item->storage.get();
    copy_bytes(recv.bytes(), from, item->bytes);
    if (item->local != nullptr) room_.complete(*item->local);
    room_.complete(recv);
  } else {
    if (item->storage) copy_bytes(recv.bytes(), item->storage.get(), got_);
    target_ = &recv;
    item_ = nullptr;
  }
  erase(item);
}

void Inbox::erase(Items::iterator item) {
  if (item->storage) room_.unexpected_bytes_ -= item->bytes;
  arrived_.erase(item);
}

// Begins to move the payload of a message to its receive.
void Inbox::start(MessageWork& recv, const MessageHeader& header) {
  if (header.kind == MessageKind::kDirect) {
    transfers_.push_back({&recv, header});
  } else if (bytes_ == 0) {
    room_.complete(recv);
  } else {
    target_ = &recv;
  }
}

void Inbox::deliver(MessageWork& send) {
  Item item;
  item.header.tag = send.tag;
  item.header.count = send.buffer.count;
  item.header.type = static_cast<std::uint32_t>(send.buffer.type);
  item.bytes = send.buffer.bytes();
  item.complete = true;
  if (MessageWork* const recv = take_posted(send.tag)) {
    if (!agree(*recv, item.header)) return;
    copy_bytes(recv->bytes(), send.bytes(), item.bytes);
    room_.complete(send);
    room_.complete(*recv);
    return;
  }
  if (item.bytes <= kEagerBytes && make_room(item)) {
    copy_bytes(item.storage.get(), send.bytes(), item.bytes);
    room_.complete(send);
  } else {
    item.local = &send;
  }
  arrived_.push_back(std::move(item));
}

bool Inbox::make_room(Item& item) {
  if (room_.unexpected_bytes_ + item.bytes > room_.limit_bytes_) return false;
  item.storage = std::make_unique_for_overwrite<std::byte[]>(item.bytes);
  room_.unexpected_bytes_ += item.bytes;
  return true;
}

bool Inbox::pull(PeerStream& stream, PeerRings* node, bool eager) {
  bool moved = node != nullptr && transfer(*node);
  for (int messages = 0; messages < kPullMessages && room_.alive(); ++messages) {
    if (target_ == nullptr && !eager && posted_.empty() && !room_.awaits_any()) break;
    const bool of_header = target_ == nullptr && item_ == nullptr;
    if (of_header ? !read_header(stream) : !read_payload(stream)) break;
    moved = true;
  }
  if (target_ != nullptr) room_.begin(*target_);
  return moved;
}

bool Inbox::read_header(PeerStream& stream) {
  const std::size_t count =
      stream.read(reinterpret_cast<std::byte*>(&header_) + got_, sizeof(header_) - got_);
  got_ += count;
  if (got_ == sizeof(header_)) begin_message();
  return count > 0;
}

bool Inbox::read_payload(PeerStream& stream) {
  if (target_ == nullptr && !item_->storage && !make_room(*item_)) return false;
  std::byte* to = target_ != nullptr ? target_->bytes() : item_->storage.get();
  const std::size_t count = stream.read(to + got_, std::min(bytes_ - got_, kPullBytes));
  got_ += count;
  if (got_ == bytes_) end_message();
  return count > 0;
}

void Inbox::begin_message() {
  got_ = 0;
  const bool known = header_.kind >= MessageKind::kStream && header_.kind <= MessageKind::kAbort &&
                     header_.type < kDTypes;
  if (!known || (header_.kind == MessageKind::kAbort && header_.count > kAbortBytes)) {
    room_.break_down(
        {Errc::kProtocol, peer_, fmt::format("rank {} sent bytes that are not a message", peer_)});
    return;
  }
  bytes_ = header_.count * dtype_bytes(static_cast<DType>(header_.type));
  if (header_.kind != MessageKind::kAbort) {
    if (MessageWork* const recv = take_posted(header_.tag)) {
      if (agree(*recv, header_)) start(*recv, header_);
      return;
    }
  }
  Item item;
  item.header = header_;
  item.bytes = bytes_;
  arrived_.push_back(std::move(item));
  if (header_.kind == MessageKind::kDirect) return;
  item_ = &arrived_.back();
  if (bytes_ == 0) end_message();
}

void Inbox::end_message() {
  got_ = 0;
  if (target_ != nullptr) {
    room_.complete(*std::exchange(target_, nullptr));
    return;
  }
  Item& item = *std::exchange(item_, nullptr);
  item.complete = true;
  if (item.header.kind != MessageKind::kAbort) return;
  room_.break_down({static_cast<Errc>(item.header.tag), item.header.suspect,
                    std::string(reinterpret_cast<const char*>(item.storage.get()), item.bytes),
                    true});
}

bool Inbox::transfer(PeerRings& node) {
  if (transfers_.empty()) return false;
  Transfer& first = transfers_.front();
  const std::size_t bytes = first.recv->buffer.bytes();
  const std::size_t count = std::min(bytes - first.done, kPullBytes);
  copy_bytes(first.recv->bytes() + first.done,
             node.payload(first.header.offset, bytes) + first.done, count);
  first.done += count;
  if (first.done < bytes) {
    room_.begin(*first.recv);
  } else {
    node.take(first.header.ticket);
    room_.complete(*first.recv);
    transfers_.pop_front();
  }
  return true;
}

std::string Inbox::status(const MessageWork& recv) const {
  if (target_ == &recv) {
    return fmt::format("rank {} has sent {} of {} bytes", peer_, got_, bytes_);
  }
  std::string text = fmt::format("rank {} has sent no matching message", peer_);
  std::vector<std::uint64_t> tags;
  for (const Item& item : arrived_) {
    if (item.header.tag < kInternalTags) tags.push_back(item.header.tag);
  }
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  if (tags.size() > 8) tags.resize(8);
  if (!tags.empty()) text += fmt::format(", only some with tag {}", fmt::join(tags, ", "));
  if (blocked()) {
    text += fmt::format("; {} MiB of messages without a receive block the following messages",
                        room_.limit_bytes_ >> 20);
  }
  return text;
}

void Inbox::clear() {
  posted_.clear();
  arrived_.clear();
  transfers_.clear();
  target_ = nullptr;
  item_ = nullptr;
}

}  // namespace ddp::runtime
