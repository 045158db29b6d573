#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/result.h"
#include "common/net/any_stream.h"
#include "common/net/frame_connection.h"
#include "common/wire/stream_frame.h"

namespace ddp::net {

// Many streams over one connection (PROTOCOL.md, "The workers' store traffic"). A stream whose
// receiver does not read stops its sender, and nobody else: the receiver keeps at most
// kStreamWindow bytes of it. A connection that takes no more bytes stops all its senders. On the
// thread of `io`.
//
// The owner of the connection passes on its events. When the connection ends, all streams do.
class StreamMux {
 public:
  using OpenedCallback = std::function<void(std::shared_ptr<Stream>)>;

  // `on_opened` gets the streams that the peer opens. It need not keep or use one: a stream without
  // a handler keeps what comes until it has one.
  StreamMux(asio::io_context& io, std::shared_ptr<FrameConnection> connection,
            OpenedCallback on_opened = {});
  ~StreamMux();  // Closes the connection; the streams end.
  StreamMux(const StreamMux&) = delete;
  StreamMux& operator=(const StreamMux&) = delete;

  std::shared_ptr<Stream> open();
  std::size_t num_streams() const { return streams_.size(); }

  // Events of the connection. kProtocol: the peer breaks the rules, and the connection is closed.
  Result<void> on_frame(std::string_view payload);
  void on_drained();
  void on_closed(const Error& why);

 private:
  class Muxed;

  std::shared_ptr<Muxed> add(std::uint32_t number);
  // A copy, because streams leave the map when they end.
  std::vector<std::shared_ptr<Muxed>> open_streams() const;
  void send(const wire::StreamFrame& frame);
  // Whether the connection takes more data now. If not, `waiting` gets its turn later.
  bool takes() const;

  asio::io_context& io_;
  std::shared_ptr<FrameConnection> connection_;
  OpenedCallback opened_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Muxed>> streams_;
  std::deque<std::weak_ptr<Muxed>> waiting_;  // For the connection to take more.
  std::uint32_t last_number_ = 0;
};

}  // namespace ddp::net
