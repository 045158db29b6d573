#include "common/net/frame_connection.h"

#include <optional>
#include <utility>

#include <asio/post.hpp>

#include "common/wire/frame.h"

namespace ddp::net {

// Cuts the stream's bytes into frames.
class FrameConnection::Inbox : public ByteStream::Handler,
                               public std::enable_shared_from_this<Inbox> {
 public:
  explicit Inbox(std::shared_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

  void on_bytes(std::string_view bytes) override {
    decoder.append(bytes);
    deliver();
  }

  void on_closed(const Error& why) override {
    // Moved out first: the callback may call close(), which forgets it.
    const ClosedCallback callback = std::exchange(closed_callback, nullptr);
    drained_callback = nullptr;
    if (callback) callback(why);
  }

  void on_drained() override {
    if (drained_callback) drained_callback();
  }

  void deliver() {
    while (stream_->is_open()) {
      Result<std::optional<std::string>> frame = decoder.next();
      if (!frame) {
        return end(make_error(Errc::kProtocol, "{} sent no frame: {}", stream_->remote(),
                              frame.error().message));
      }
      if (!frame->has_value()) return;
      frame_callback(std::move(**frame));
    }
  }

  wire::FrameDecoder decoder;
  FrameCallback frame_callback;
  ClosedCallback closed_callback;
  DrainedCallback drained_callback;

  // This side ends the connection.
  void end(Error why) {
    stream_->close();
    asio::post(stream_->io(),
               [self = shared_from_this(), why = std::move(why)] { self->on_closed(why); });
  }

 private:
  std::shared_ptr<ByteStream> stream_;
};

namespace {

ByteStream::Options options_with(std::chrono::milliseconds user_timeout) {
  ByteStream::Options options;
  options.socket.keepalive_idle = std::chrono::seconds(3);
  options.socket.user_timeout = user_timeout;
  options.socket.retransmits_steadily = true;
  options.max_queued_bytes = FrameConnection::kMaxQueuedBytes;
  return options;
}

}  // namespace

FrameConnection::FrameConnection(std::shared_ptr<ByteStream> stream)
    : stream_(std::move(stream)),
      unstarted_(std::make_shared<Inbox>(stream_)),
      inbox_(unstarted_) {}

FrameConnection::~FrameConnection() = default;

std::shared_ptr<FrameConnection> FrameConnection::adopt(std::shared_ptr<ByteStream> stream,
                                                        std::string_view received) {
  stream->set_options(options_with(std::chrono::seconds(10)));
  stream->pause_reading();
  std::shared_ptr<FrameConnection> connection(new FrameConnection(std::move(stream)));
  connection->unstarted_->decoder.append(received);
  return connection;
}

void FrameConnection::start(FrameCallback on_frame, ClosedCallback on_closed,
                            DrainedCallback on_drained) {
  DDP_CHECK(unstarted_ != nullptr, "start() is called once a connection");
  unstarted_->frame_callback = std::move(on_frame);
  unstarted_->closed_callback = std::move(on_closed);
  unstarted_->drained_callback = std::move(on_drained);
  // From the event loop, because frames may have come with the preamble.
  asio::post(stream_->io(), [stream = stream_, inbox = std::exchange(unstarted_, nullptr)] {
    inbox->deliver();
    stream->set_handler(inbox);
    stream->resume_reading();
  });
}

void FrameConnection::send(std::string_view payload) {
  if (!stream_->is_open()) return;
  if (payload.size() <= wire::kMaxFrameBytes) return stream_->send(wire::encode_frame(payload));
  const auto inbox = inbox_.lock();
  if (inbox == nullptr) return stream_->close();
  inbox->end(make_error(Errc::kIo,
                        "a message of {} bytes for {} is not sent, because the limit is {}; the "
                        "connection ends",
                        payload.size(), stream_->remote(), wire::kMaxFrameBytes));
}

void FrameConnection::expect_acknowledgements(std::chrono::milliseconds within) {
  stream_->set_options(options_with(within));
}

void FrameConnection::close_after_writes() { stream_->close_after_writes(); }
void FrameConnection::close() {
  if (const auto inbox = inbox_.lock()) inbox->closed_callback = nullptr;
  stream_->close();
}

std::string FrameConnection::remote_address() const { return stream_->remote_address(); }

}  // namespace ddp::net
