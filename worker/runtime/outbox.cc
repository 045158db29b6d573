#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "worker/runtime/post_office.h"

namespace ddp::runtime {
namespace {

constexpr std::size_t kPushBytes = std::size_t{1} << 20;  // Limit per turn of one peer.

}  // namespace

bool Outbox::send_now(const Buffer& buffer, std::uint64_t tag, PeerRings& stream) {
  const std::size_t bytes = buffer.bytes();
  if (!queue_.empty() || bytes > kEagerBytes) return false;
  MessageHeader header;
  header.tag = tag;
  header.count = buffer.count;
  header.type = static_cast<std::uint32_t>(buffer.type);
  return stream.write_all({reinterpret_cast<const std::byte*>(&header), sizeof(header)},
                          {static_cast<const std::byte*>(buffer.data), bytes});
}

void Outbox::add(MessageWork& send, const transport::Arena* arena) {
  Item item;
  item.header.tag = send.tag;
  item.header.count = send.buffer.count;
  item.header.type = static_cast<std::uint32_t>(send.buffer.type);
  item.work = &send;
  item.payload = send.bytes();
  item.bytes = send.buffer.bytes();
  if (arena != nullptr && item.bytes > kEagerBytes) {
    item.header.offset = arena->offset_of(item.payload, item.bytes);
    if (item.header.offset != transport::Arena::kPrivate) {
      item.header.kind = MessageKind::kDirect;
      item.bytes = 0;
    }
  }
  queue_.push_back(std::move(item));
}

bool Outbox::write(Item& item, PeerStream& stream) {
  const Bytes header(reinterpret_cast<const std::byte*>(&item.header), sizeof(item.header));
  const std::size_t of_header = std::min(item.written, header.size());
  const std::size_t of_payload = item.written - of_header;
  const Bytes payload(item.payload + of_payload, std::min(item.bytes - of_payload, kPushBytes));
  const std::size_t moved = stream.write(header.subspan(of_header), payload);
  item.written += moved;
  return moved > 0;
}

bool Outbox::push(PeerStream& stream, PeerRings* node) {
  bool moved = false;
  std::size_t budget = kPushBytes;
  while (!queue_.empty()) {
    Item& item = queue_.front();
    if (item.header.kind == MessageKind::kDirect && !item.has_ticket) {
      const auto ticket = node->take_ticket();
      if (!ticket) break;
      item.header.ticket = *ticket;
      item.has_ticket = true;
    }
    const std::size_t before = item.written;
    if (!write(item, stream)) break;
    moved = true;
    const std::size_t count = item.written - before;
    const bool all = item.written == sizeof(item.header) + item.bytes;
    if (all) {
      if (item.header.kind == MessageKind::kDirect) {
        lent_.push_back({item.work, item.header.ticket});
      } else if (item.work != nullptr) {
        room_.complete(*item.work);
      }
      if (item.copy) room_.undelivered_bytes_ -= item.bytes;
      queue_.pop_front();
    }
    if (count >= budget) break;
    budget -= count;
  }
  if (mid_message() && queue_.front().work != nullptr) room_.begin(*queue_.front().work);
  const auto returned = std::remove_if(lent_.begin(), lent_.end(), [&](const Lent& lent) {
    if (!node->is_taken(lent.ticket)) return false;
    node->give_back(lent.ticket);
    room_.complete(*lent.work);
    moved = true;
    return true;
  });
  lent_.erase(returned, lent_.end());
  return moved;
}

void Outbox::keep_last() {
  if (queue_.empty()) return;
  Item& item = queue_.back();
  if (item.work == nullptr || item.header.kind == MessageKind::kDirect ||
      item.bytes > kEagerBytes || room_.undelivered_bytes_ + item.bytes > room_.limit_bytes_) {
    return;
  }
  item.copy = std::make_unique_for_overwrite<std::byte[]>(item.bytes);
  if (item.bytes > 0) std::memcpy(item.copy.get(), item.payload, item.bytes);
  item.payload = item.copy.get();
  room_.undelivered_bytes_ += item.bytes;
  room_.complete(*std::exchange(item.work, nullptr));
}

bool Outbox::pending() const {
  return !lent_.empty() || std::any_of(queue_.begin(), queue_.end(),
                                       [](const Item& item) { return item.work != nullptr; });
}

std::string Outbox::status(const MessageWork& send) const {
  for (const Item& item : queue_) {
    if (item.work != &send || item.written <= sizeof(item.header)) continue;
    return fmt::format("rank {} has taken {} of {} bytes", send.peer,
                       item.written - sizeof(item.header), item.bytes);
  }
  return fmt::format("rank {} has posted no matching receive", send.peer);
}

void Outbox::clear() {
  for (const Item& item : queue_) {
    if (item.copy) room_.undelivered_bytes_ -= item.bytes;
  }
  queue_.clear();
  lent_.clear();
}

}  // namespace ddp::runtime
