#include "launcher/server/store_front.h"

#include <string>
#include <utility>

#include <asio/post.hpp>
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/log/log.h"

namespace ddp::server {

using rendezvous::StoreCore;
using wire::c10d::Request;

namespace {

// If this many bytes of answers are unread, a client's further requests wait until it has read.
constexpr std::size_t kPauseBytes = 1u << 20;
// Limit of what may be in a client's queue besides one answer: earlier answers, and notices about
// keys that it watches.
constexpr std::size_t kMaxOtherBytes = 64u << 20;
// After this many requests of one client, which take less than a tenth of a millisecond, others are
// served.
constexpr int kRequestsPerTurn = 256;
constexpr std::size_t kMoveBytes = 64u << 10;

}  // namespace

std::uint64_t StoreFigures::all_requests() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t of_one : requests) sum += of_one;
  return sum;
}

class StoreFront::Session : public net::Stream::Handler,
                            public std::enable_shared_from_this<Session> {
 public:
  Session(StoreFront& front, std::uint64_t id, std::shared_ptr<net::Stream> stream)
      : front_(front),
        id_(id),
        stream_(std::move(stream)),
        parser_(front.options_.limits, front.options_.old_dialect) {}

  void on_bytes(std::string_view bytes) override {
    front_.received_bytes_ += bytes.size();
    parser_.append(bytes);
    process();
  }

  void on_drained() override { go_on(); }

  void on_closed(const Error& why) override {
    if (why.code == Errc::kIo) log::warning("store client dropped: {}", why.message);
    front_.forget(id_);
  }

  void send(std::string_view bytes) { stream_->send(bytes); }
  void close() { stream_->close(); }

 private:
  void process();
  void pause();
  void go_on();
  void take_turns();
  void perform(const Request& request, std::string& out);
  void refuse(std::string_view reason);

  StoreFront& front_;  // Outlives the session's connection.
  std::uint64_t id_;
  std::shared_ptr<net::Stream> stream_;
  wire::c10d::RequestParser parser_;
  bool paused_ = false;      // Received requests wait, and no more are read.
  bool takes_turn_ = false;  // go_on() is posted.
};

// Requests that came together are answered together.
void StoreFront::Session::process() {
  std::string out;
  for (int served = 0; stream_->is_open(); ++served) {
    if (out.size() + stream_->queued_bytes() > kPauseBytes) {
      stream_->send(out);
      out.clear();
      if (stream_->queued_bytes() > 0) return pause();
    }
    if (served == kRequestsPerTurn) {
      stream_->send(out);
      return take_turns();
    }
    Result<const Request*> request = parser_.next();
    if (!request) {
      stream_->send(out);
      return refuse(request.error().message);
    }
    if (*request == nullptr) break;
    perform(**request, out);
  }
  stream_->send(out);
}

void StoreFront::Session::pause() {
  paused_ = true;
  stream_->pause_reading();
}

void StoreFront::Session::go_on() {
  if (!paused_ || !stream_->is_open()) return;
  paused_ = false;
  process();
  if (!paused_) stream_->resume_reading();
}

void StoreFront::Session::take_turns() {
  pause();
  if (std::exchange(takes_turn_, true)) return;
  asio::post(stream_->io(), [self = shared_from_this()] {
    self->takes_turn_ = false;
    self->go_on();
  });
}

void StoreFront::Session::perform(const Request& request, std::string& out) {
  ++front_.requests_[static_cast<std::size_t>(request.op)];
  StoreCore::Effects& effects = front_.effects_;
  front_.core_->on_request(id_, *parser_.dialect(), request, effects);
  if (out.empty() && effects.answer.size() > kMoveBytes) {
    out = std::move(effects.answer);
  } else {
    out += effects.answer;
  }
  for (const StoreCore::Output& output : effects.outputs) {
    if (output.to == id_) {
      out += output.bytes;
      continue;
    }
    const auto session = front_.sessions_.find(output.to);
    if (session != front_.sessions_.end()) session->second->send(output.bytes);
  }
  if (effects.close_reason.empty()) return;
  stream_->send(out);
  out.clear();
  refuse(effects.close_reason);
}

// The protocol has no error answer, so the connection is closed.
void StoreFront::Session::refuse(std::string_view reason) {
  if (const auto left_out = front_.refusals_.admit(Clock::now())) {
    log::warning("closing store client {}: {}{}", stream_->remote(), reason,
                 *left_out == 0 ? "" : fmt::format(" ({} more since the last line)", *left_out));
  }
  front_.core_->on_disconnect(id_);
  stream_->close_after_writes();
}

StoreFront::StoreFront(const StoreOptions& options)
    : options_(options), core_(std::make_unique<StoreCore>(options.max_answer_bytes)) {}

StoreFront::~StoreFront() { close_all(); }

void StoreFront::adopt(const std::shared_ptr<net::Stream>& stream, std::string_view received) {
  const std::uint64_t id = next_id_++;
  stream->limit_queue(options_.max_answer_bytes + kMaxOtherBytes);
  auto session = std::make_shared<Session>(*this, id, stream);
  sessions_.emplace(id, session);
  stream->set_handler(session);
  session->on_bytes(received);
}

void StoreFront::reset() {
  close_all();
  core_ = std::make_unique<StoreCore>(options_.max_answer_bytes);
}

StoreFigures StoreFront::figures() const {
  StoreFigures out;
  out.connections = sessions_.size();
  out.waits = core_->num_waits();
  out.keys = core_->num_keys();
  out.bytes = core_->num_bytes();
  out.received_bytes = received_bytes_;
  out.requests = requests_;
  return out;
}

void StoreFront::close_all() {
  for (const auto& [id, session] : sessions_) session->close();
  sessions_.clear();
}

void StoreFront::forget(std::uint64_t id) {
  core_->on_disconnect(id);
  sessions_.erase(id);
}

}  // namespace ddp::server
