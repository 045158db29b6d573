#include "agent/process/worker_channel.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "common/process/descriptor_passing.h"

namespace ddp::agent {
namespace {

constexpr std::size_t kChunkBytes = 16 * 1024;
// Reads in a row before others get their turn.
constexpr int kChunksPerTurn = 16;
// A dead worker cannot have left more than its socket buffer holds, but a grandchild that holds the
// socket may go on writing.
constexpr int kReadsOfDrain = 256;
// A snapshot and a lock, with room to spare.
constexpr std::size_t kDescriptorsKept = 8;

void move_to(std::vector<UniqueFd>& from, std::vector<UniqueFd>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from.clear();
}

}  // namespace

std::shared_ptr<WorkerChannel> WorkerChannel::start(asio::io_context& io, UniqueFd socket,
                                                    Callback on_message) {
  std::shared_ptr<WorkerChannel> channel(new WorkerChannel(io, std::move(on_message)));
  channel->socket_.assign(socket.release());
  channel->wait();
  return channel;
}

void WorkerChannel::wait() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [weak = weak_from_this()](const std::error_code& error) {
                       const auto self = weak.lock();
                       if (!self || error) return;
                       for (int i = 0; i < kChunksPerTurn && self->read_once(); ++i) {
                       }
                       if (self->socket_.is_open()) self->wait();
                     });
}

bool WorkerChannel::read_once() {
  if (!socket_.is_open()) return false;
  char buffer[kChunkBytes];
  const ssize_t size = receive_with_descriptors(socket_.native_handle(), buffer, latest_);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (size <= 0) {
    close();
    return false;
  }
  decoder_.append({buffer, static_cast<std::size_t>(size)});
  if (take_frames()) return true;
  close();
  return false;
}

bool WorkerChannel::take_frames() {
  for (;;) {
    const auto frame = decoder_.next();
    if (!frame) return false;
    if (!*frame) break;
    current_ = std::exchange(incoming_, {});
    if (decoder_.at_boundary()) move_to(latest_, current_);
    // A message of a kind that this agent does not know is skipped.
    if (const auto message = wire::decode_worker_message(**frame); message && socket_.is_open())
      on_message_(*message);
    current_.clear();
  }
  move_to(latest_, incoming_);
  if (incoming_.size() > kDescriptorsKept) incoming_.clear();
  return true;
}

void WorkerChannel::drain() {
  for (int i = 0; i < kReadsOfDrain && read_once(); ++i) {
  }
}

void WorkerChannel::send(const wire::WorkerOrder& order) {
  if (unsent_bytes_ > kBacklogBytes) return;
  push({wire::encode_frame(wire::encode(order)), UniqueFd(), 0});
}

void WorkerChannel::send(const wire::NewRound& order, int descriptor) {
  push({wire::encode_frame(wire::encode(wire::WorkerOrder(order))),
        UniqueFd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3)), 0});
}

void WorkerChannel::push(Unsent order) {
  if (!socket_.is_open()) return;
  unsent_bytes_ += order.bytes.size();
  unsent_.push_back(std::move(order));
  flush();
}

void WorkerChannel::flush() {
  while (!unsent_.empty() && send_once(unsent_.front())) {
    if (unsent_.front().sent == unsent_.front().bytes.size()) unsent_.pop_front();
  }
  if (unsent_.empty() || waiting_for_room_ || !socket_.is_open()) return;
  waiting_for_room_ = true;
  socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                     [weak = weak_from_this()](const std::error_code& error) {
                       const auto self = weak.lock();
                       if (!self) return;
                       self->waiting_for_room_ = false;
                       if (!error) self->flush();
                     });
}

bool WorkerChannel::send_once(Unsent& order) {
  const ssize_t sent = send_with_descriptors(socket_.native_handle(),
                                             std::string_view(order.bytes).substr(order.sent),
                                             {&order.descriptor, order.descriptor ? 1U : 0U});
  if (sent < 0 && errno == EINTR) return true;
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
    // The worker is gone; what it has written before can still be read.
    unsent_.clear();
    unsent_bytes_ = 0;
  }
  if (sent <= 0) return false;
  order.descriptor.reset();
  order.sent += static_cast<std::size_t>(sent);
  unsent_bytes_ -= static_cast<std::size_t>(sent);
  return true;
}

void WorkerChannel::close() {
  std::error_code ignored;
  socket_.close(ignored);
  for (auto* each : {&incoming_, &latest_, &current_}) each->clear();
  unsent_.clear();
  unsent_bytes_ = 0;
}

}  // namespace ddp::agent
