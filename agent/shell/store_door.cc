#include "agent/shell/store_door.h"

#include <system_error>
#include <utility>

#include "agent/shell/coordinator_link.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/net/join_streams.h"
#include "common/wire/stream_frame.h"

namespace ddp::agent {
namespace {

constexpr Duration kRetryPause{200};

}  // namespace

StoreDoor::StoreDoor(asio::io_context& io, net::Credentials credentials)
    : io_(io),
      credentials_(std::move(credentials)),
      retry_(io),
      self_(std::make_shared<StoreDoor*>(this)) {
  if (!credentials_.any_user) gate_.emplace();
}

StoreDoor::~StoreDoor() {
  *self_ = nullptr;
  for (const auto& worker : waiting_) worker->close();
}

Result<int> StoreDoor::lead_to(const std::string& host, int port) {
  if (host != host_ || port != port_) {
    host_ = host;
    port_ = port;
    ++generation_;
    mux_ = nullptr;
    connecting_ = false;
    retry_.cancel();
    if (!waiting_.empty()) connect();
  }
  if (!listener_) {
    auto listener = net::Listener::open(io_, kAddress, 0);
    if (!listener) return listener.error();
    listener_ = std::move(*listener);
    listener_->start([this](asio::ip::tcp::socket worker) { welcome(std::move(worker)); });
  }
  return listener_->port();
}

void StoreDoor::welcome(asio::ip::tcp::socket worker) {
  if (gate_ && !admits(gate_->judge(worker.native_handle())))
    return cut(UniqueFd(worker.release()));
  waiting_.push_back(net::ByteStream::create(std::move(worker), {}));
  if (mux_) return let_in();
  connect();
}

void StoreDoor::let_in() {
  for (const auto& worker : std::exchange(waiting_, {})) net::join_streams(worker, mux_->open());
}

void StoreDoor::connect() {
  if (connecting_ || mux_) return;
  connecting_ = true;
  net::FrameConnection::connect(io_, host_, port_, credentials_, kAttemptLimit,
                                [self = self_, generation = generation_](
                                    Result<std::shared_ptr<net::FrameConnection>> result) {
                                  StoreDoor* const door = *self;
                                  if (door == nullptr || door->generation_ != generation) {
                                    if (result) (*result)->close();
                                    return;
                                  }
                                  if (result) return door->adopt(std::move(*result));
                                  door->retry_.after(kRetryPause, [door] {
                                    door->connecting_ = false;
                                    if (!door->waiting_.empty()) door->connect();
                                  });
                                });
}

void StoreDoor::adopt(std::shared_ptr<net::FrameConnection> connection) {
  connecting_ = false;
  connection->send(wire::kStoreStreams);
  mux_ = std::make_unique<net::StreamMux>(io_, connection);
  const auto guarded = [self = self_, generation = generation_](auto act) {
    StoreDoor* const door = *self;
    if (door != nullptr && door->generation_ == generation && door->mux_) act(*door);
  };
  connection->start(
      [guarded](const std::string& payload) {
        guarded([&](StoreDoor& door) { door.on_frame(payload); });
      },
      [guarded](const Error& why) {
        guarded([&](StoreDoor& door) {
          ++door.generation_;
          std::exchange(door.mux_, nullptr)->on_closed(why);
        });
      },
      [guarded] { guarded([](StoreDoor& door) { door.mux_->on_drained(); }); });
  let_in();
}

void StoreDoor::on_frame(const std::string& payload) {
  if (mux_->on_frame(payload)) return;
  ++generation_;
  mux_ = nullptr;  // No daemon of ours says that.
}

}  // namespace ddp::agent
