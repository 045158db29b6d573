#include "launcher/server/store_front.h"

#include <string>
#include <utility>

#include "common/log/log.h"

namespace ddp::server {

using rendezvous::StoreCore;
using wire::c10d::Request;

namespace {

// A client with this much unread gets no further request answered until it has read.
constexpr std::size_t kPauseBytes = 1u << 20;
constexpr std::size_t kMaxAnswerBytes = 256u << 20;
// One answer, what may lie before it, and pushes of keys that a legacy client watches.
constexpr std::size_t kMaxQueuedBytes = kMaxAnswerBytes + (64u << 20);

}  // namespace

class StoreFront::Session : public net::ByteStream::Handler,
                            public std::enable_shared_from_this<Session> {
 public:
  Session(StoreFront& front, std::uint64_t id, std::shared_ptr<net::ByteStream> stream)
      : front_(front), id_(id), stream_(std::move(stream)) {}

  void on_bytes(std::string_view bytes) override {
    parser_.append(bytes);
    process();
  }

  void on_drained() override {
    if (!paused_) return;
    paused_ = false;
    process();
    if (!paused_) stream_->resume_reading();
  }

  void on_closed(const Error& why) override {
    if (why.code == Errc::kIo) log::warning("store client dropped: {}", why.message);
    front_.forget(id_);
  }

  void send(std::string_view bytes) { stream_->send(bytes); }
  void close() { stream_->close(); }

 private:
  void process();
  void perform(const Request& request, std::string& out);
  void refuse(std::string_view reason);

  StoreFront& front_;  // Outlives the session's connection.
  std::uint64_t id_;
  std::shared_ptr<net::ByteStream> stream_;
  wire::c10d::RequestParser parser_;
  bool paused_ = false;
};

// Answers of requests that came together leave together.
void StoreFront::Session::process() {
  std::string out;
  while (stream_->is_open()) {
    if (out.size() + stream_->queued_bytes() > kPauseBytes) {
      stream_->send(out);
      out.clear();
      if (stream_->queued_bytes() > 0) {
        paused_ = true;
        return stream_->pause_reading();
      }
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

void StoreFront::Session::perform(const Request& request, std::string& out) {
  ++front_.requests_;
  StoreCore::Effects& effects = front_.effects_;
  front_.core_->on_request(id_, *parser_.dialect(), request, effects);
  out += effects.answer;
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

// The protocol knows no error answer: closing is all there is.
void StoreFront::Session::refuse(std::string_view reason) {
  log::warning("closing store client {}: {}", stream_->remote(), reason);
  front_.core_->on_disconnect(id_);
  stream_->close_after_writes();
}

StoreFront::StoreFront() : core_(std::make_unique<StoreCore>(kMaxAnswerBytes)) {}

StoreFront::~StoreFront() { close_all(); }

void StoreFront::adopt(const std::shared_ptr<net::ByteStream>& stream, std::string_view received) {
  const std::uint64_t id = next_id_++;
  net::ByteStream::Options options;
  options.max_queued_bytes = kMaxQueuedBytes;
  stream->set_options(options);
  auto session = std::make_shared<Session>(*this, id, stream);
  sessions_.emplace(id, session);
  stream->set_handler(session);
  session->on_bytes(received);
}

void StoreFront::reset() {
  close_all();
  core_ = std::make_unique<StoreCore>(kMaxAnswerBytes);
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
