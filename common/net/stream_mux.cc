#include "common/net/stream_mux.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <asio/post.hpp>
#include <fmt/format.h>

namespace ddp::net {
namespace {

using Kind = wire::StreamFrame::Kind;

// While more than this waits in the connection, streams keep their bytes.
constexpr std::size_t kBusyBytes = 1u << 20;
// The receiver says that it has taken bytes once they are this many.
constexpr std::uint32_t kReportBytes = wire::kStreamWindow / 4;

}  // namespace

class StreamMux::Muxed final : public Stream, public std::enable_shared_from_this<Muxed> {
 public:
  Muxed(StreamMux& mux, std::uint32_t number)
      : mux_(&mux),
        io_(mux.io_),
        number_(number),
        remote_(fmt::format("{} (stream {})", mux.connection_->remote_address(), number)) {}

  void set_handler(std::shared_ptr<Handler> handler) override;
  void send(std::string_view bytes) override;
  void pause_reading() override { paused_ = true; }
  void resume_reading() override;
  void close_after_writes() override;
  void close() override;
  bool is_open() const override { return mux_ != nullptr && !draining_; }
  std::size_t queued_bytes() const override { return pending_.size() - written_; }
  void limit_queue(std::size_t bytes) override { max_queued_bytes_ = bytes; }
  std::string remote() const override { return remote_; }
  asio::io_context& io() override { return io_; }

  // From the event loop.
  bool take(std::string_view bytes);
  void add_credit(std::uint32_t bytes);
  // The peer neither sends nor takes anything more.
  void peer_closed(const Error& why);
  void turn();
  // The handler is told from the event loop.
  void end(Error why);

 private:
  void pump();
  void drained();
  void deliver();
  void give(std::string_view bytes);
  void report(std::size_t taken);

  StreamMux* mux_;  // Null once the stream has ended.
  asio::io_context& io_;
  const std::uint32_t number_;
  const std::string remote_;
  std::shared_ptr<Handler> handler_;
  std::size_t max_queued_bytes_ = 64u << 20;
  std::string pending_;  // From written_ on: to be sent.
  std::size_t written_ = 0;
  std::size_t credit_ = wire::kStreamWindow;  // How much the peer takes.
  std::string inbox_;                         // Received while paused, at most kStreamWindow.
  std::uint32_t unreported_ = 0;              // Taken bytes that the peer does not know of.
  bool paused_ = true;                        // No handler yet, or pause_reading().
  bool waited_ = false;                       // Bytes have waited since the last on_drained().
  bool in_turn_ = false;                      // Is in mux_->waiting_.
  bool draining_ = false;                     // close_after_writes() was called.
  std::optional<Error> peer_end_;             // The peer has closed.
};

void StreamMux::Muxed::set_handler(std::shared_ptr<Handler> handler) {
  if (mux_ == nullptr) return;
  const bool first = handler_ == nullptr;
  handler_ = std::move(handler);
  if (first) resume_reading();
}

void StreamMux::Muxed::send(std::string_view bytes) {
  if (!is_open() || peer_end_ || bytes.empty()) return;
  if (queued_bytes() + bytes.size() > max_queued_bytes_ && queued_bytes() > 0) {
    return end(make_error(Errc::kIo, "{} does not read: {} bytes wait to be sent, the limit is {}",
                          remote_, queued_bytes() + bytes.size(), max_queued_bytes_));
  }
  pending_.append(bytes);
  pump();
}

void StreamMux::Muxed::pump() {
  while (queued_bytes() > 0 && credit_ > 0) {
    if (!mux_->takes()) {
      if (!std::exchange(in_turn_, true)) mux_->waiting_.push_back(weak_from_this());
      break;
    }
    const std::size_t count = std::min({queued_bytes(), credit_, std::size_t{wire::kStreamPiece}});
    mux_->send({Kind::kData, number_, std::string_view(pending_).substr(written_, count)});
    written_ += count;
    credit_ -= count;
  }
  if (queued_bytes() > 0) {
    waited_ = true;
    if (written_ <= kBusyBytes || written_ < pending_.size() / 2) return;
    pending_.erase(0, written_);
    written_ = 0;
    return;
  }
  pending_.clear();
  pending_.shrink_to_fit();
  written_ = 0;
  if (draining_) end(make_error(Errc::kAborted, "stream to {} closed by this side", remote_));
}

// From the event loop, so it may call the handler.
void StreamMux::Muxed::drained() {
  if (queued_bytes() > 0 || !std::exchange(waited_, false) || !is_open()) return;
  const std::shared_ptr<Handler> handler = handler_;
  if (handler) handler->on_drained();
}

void StreamMux::Muxed::turn() {
  in_turn_ = false;
  if (mux_ == nullptr) return;
  pump();
  drained();
}

void StreamMux::Muxed::add_credit(std::uint32_t bytes) {
  credit_ += bytes;
  pump();
  drained();
}

bool StreamMux::Muxed::take(std::string_view bytes) {
  if (peer_end_ || inbox_.size() + bytes.size() > wire::kStreamWindow) return false;
  if (draining_) {
    report(bytes.size());
  } else if (paused_ || !inbox_.empty()) {
    inbox_.append(bytes);
  } else {
    give(bytes);
  }
  return true;
}

void StreamMux::Muxed::report(std::size_t taken) {
  unreported_ += static_cast<std::uint32_t>(taken);
  if (unreported_ < kReportBytes || mux_ == nullptr) return;
  mux_->send({Kind::kTaken, number_, {}, std::exchange(unreported_, 0)});
}

void StreamMux::Muxed::give(std::string_view bytes) {
  report(bytes.size());
  // A copy: the handler may replace itself while it runs.
  const std::shared_ptr<Handler> handler = handler_;
  handler->on_bytes(bytes);
}

void StreamMux::Muxed::resume_reading() {
  if (!std::exchange(paused_, false)) return;
  if (inbox_.empty() && !peer_end_) return;
  asio::post(io_, [self = shared_from_this()] { self->deliver(); });
}

void StreamMux::Muxed::deliver() {
  if (!is_open() || paused_) return;
  if (!inbox_.empty()) give(std::exchange(inbox_, {}));
  if (is_open() && !paused_ && inbox_.empty() && peer_end_) end(*peer_end_);
}

void StreamMux::Muxed::peer_closed(const Error& why) {
  peer_end_ = why;
  pending_.clear();
  written_ = 0;
  if (draining_) return end(make_error(Errc::kAborted, "stream to {} closed", remote_));
  drained();
  deliver();
}

void StreamMux::Muxed::close_after_writes() {
  if (!is_open()) return;
  draining_ = true;
  report(std::exchange(inbox_, {}).size());
  if (queued_bytes() == 0 || peer_end_)
    end(make_error(Errc::kAborted, "stream to {} closed by this side", remote_));
}

void StreamMux::Muxed::close() {
  handler_ = nullptr;
  end({});
}

void StreamMux::Muxed::end(Error why) {
  StreamMux* const mux = std::exchange(mux_, nullptr);
  if (mux == nullptr) return;
  const auto self = shared_from_this();  // The mux may hold the last reference.
  if (!peer_end_) mux->send({Kind::kClose, number_});
  mux->streams_.erase(number_);
  asio::post(io_, [self, why = std::move(why)] {
    const std::shared_ptr<Handler> handler = std::exchange(self->handler_, nullptr);
    if (handler) handler->on_closed(why);
  });
}

StreamMux::StreamMux(asio::io_context& io, std::shared_ptr<FrameConnection> connection,
                     OpenedCallback on_opened)
    : io_(io), connection_(std::move(connection)), opened_(std::move(on_opened)) {}

StreamMux::~StreamMux() {
  const Error why = make_error(Errc::kPeerLost, "connection to {} closed by this side",
                               connection_->remote_address());
  on_closed(why);
  // A stream that is not read would end only when it is, and then without this object.
  for (const auto& stream : open_streams()) stream->end(why);
  connection_->close();
}

std::vector<std::shared_ptr<StreamMux::Muxed>> StreamMux::open_streams() const {
  std::vector<std::shared_ptr<Muxed>> streams;
  streams.reserve(streams_.size());
  for (const auto& [number, stream] : streams_) streams.push_back(stream);
  return streams;
}

std::shared_ptr<StreamMux::Muxed> StreamMux::add(std::uint32_t number) {
  auto stream = std::make_shared<Muxed>(*this, number);
  streams_.emplace(number, stream);
  return stream;
}

std::shared_ptr<Stream> StreamMux::open() {
  const std::uint32_t number = ++last_number_;
  send({Kind::kOpen, number});
  return add(number);
}

void StreamMux::send(const wire::StreamFrame& frame) { connection_->send(wire::encode(frame)); }

bool StreamMux::takes() const { return connection_->queued_bytes() < kBusyBytes; }

Result<void> StreamMux::on_frame(std::string_view payload) {
  if (payload.starts_with('{')) return {};  // A ping that was on its way.
  const auto frame = wire::decode_stream_frame(payload);
  if (!frame) return frame.error();
  const auto found = streams_.find(frame->stream);
  if (frame->kind == Kind::kOpen) {
    if (!opened_ || found != streams_.end())
      return make_error(Errc::kProtocol, "it opens stream {}", frame->stream);
    opened_(add(frame->stream));
    return {};
  }
  if (found == streams_.end()) return {};  // This side has just closed it.
  const std::shared_ptr<Muxed> stream = found->second;
  switch (frame->kind) {
    case Kind::kData:
      if (stream->take(frame->bytes)) break;
      return make_error(Errc::kProtocol, "more bytes of stream {} than its window", frame->stream);
    case Kind::kTaken:
      stream->add_credit(frame->taken);
      break;
    default:
      stream->peer_closed(
          make_error(Errc::kPeerLost, "{} closed the connection", stream->remote()));
  }
  return {};
}

// In turn, as long as the connection takes something.
void StreamMux::on_drained() {
  while (!waiting_.empty() && takes()) {
    const auto stream = waiting_.front().lock();
    waiting_.pop_front();
    if (stream) stream->turn();
  }
}

void StreamMux::on_closed(const Error& why) {
  for (const auto& stream : open_streams()) stream->peer_closed(why);
}

}  // namespace ddp::net
