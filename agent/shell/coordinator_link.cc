#include "agent/shell/coordinator_link.h"

#include <utility>
#include <variant>

#include <asio/post.hpp>

namespace ddp::agent {
CoordinatorLink::CoordinatorLink(asio::io_context& io, HostPort endpoint,
                                 net::Credentials credentials, Events events)
    : io_(io),
      endpoint_(std::move(endpoint)),
      aim_(endpoint_),
      credentials_(std::move(credentials)),
      events_(std::move(events)),
      delay_(io),
      self_(std::make_shared<CoordinatorLink*>(this)) {}

CoordinatorLink::~CoordinatorLink() {
  *self_ = nullptr;
  if (connection_) connection_->close();
}

void CoordinatorLink::connect(Duration delay) {
  ++generation_;
  trying_ = true;
  if (delay.count() > 0) {
    delay_.after(delay, [this] { attempt(); });
  } else {
    attempt();
  }
}

void CoordinatorLink::attempt() {
  net::FrameConnection::connect(io_, aim_.host, aim_.port, credentials_, kAttemptLimit,
                                [self = self_, generation = generation_](
                                    Result<std::shared_ptr<net::FrameConnection>> result) {
                                  CoordinatorLink* link = *self;
                                  if (link == nullptr || link->generation_ != generation) {
                                    if (result) (*result)->close();
                                    return;
                                  }
                                  link->trying_ = false;
                                  if (result) {
                                    link->adopt(std::move(*result));
                                  } else if (result.error().code == std::errc::permission_denied) {
                                    link->events_.on_connect_refused(result.error().message);
                                  } else {
                                    link->turn_to_the_other();
                                    link->events_.on_connect_failed(result.error().message);
                                  }
                                });
}

void CoordinatorLink::set_endpoint(const HostPort& endpoint) {
  endpoint_ = endpoint;
  hint_.reset();
  aim_at(endpoint_);
}

void CoordinatorLink::turn_to_the_other() {
  if (hint_) aim_at(aim_ == endpoint_ ? *hint_ : endpoint_);
}

void CoordinatorLink::aim_at(const HostPort& to) {
  if (to == aim_) return;
  aim_ = to;
  events_.on_aimed(aim_);
  if (trying_) {
    ++generation_;
    delay_.cancel();
    attempt();
  } else if (connection_) {
    drop_connection();
    events_.on_disconnected();
  }
}

void CoordinatorLink::adopt(std::shared_ptr<net::FrameConnection> connection) {
  connection_ = std::move(connection);
  connection_->start(
      [self = self_, generation = generation_](const std::string& payload) {
        CoordinatorLink* link = *self;
        if (link != nullptr && link->generation_ == generation) link->on_frame(payload);
      },
      [self = self_, generation = generation_](const Error&) {
        CoordinatorLink* link = *self;
        if (link == nullptr) return;
        if (link->generation_ == generation) {
          link->connection_.reset();
          link->events_.on_disconnected();
        } else if (--link->closing_ == 0 && link->closed_callback_) {
          std::exchange(link->closed_callback_, nullptr)();
        }
      });
  events_.on_connected();
}

void CoordinatorLink::on_frame(const std::string& payload) {
  // An unknown message comes from a newer coordinator and is skipped.
  const auto message = wire::decode_coordinator_message(payload);
  if (!message) return;
  if (const auto* moved = std::get_if<wire::Moved>(&*message)) {
    hint_ = {.host = moved->host, .port = moved->port};
    return aim_at(*hint_);
  }
  events_.on_message(*message);
}

void CoordinatorLink::send(const wire::AgentMessage& message) {
  if (connection_) connection_->send(wire::encode(message));
}

void CoordinatorLink::disconnect() {
  delay_.cancel();
  trying_ = false;
  drop_connection();
}

void CoordinatorLink::drop_connection() {
  ++generation_;
  if (!connection_) return;
  ++closing_;
  std::exchange(connection_, nullptr)->close_after_writes();
}

void CoordinatorLink::when_closed(std::function<void()> callback) {
  if (closing_ == 0) {
    asio::post(io_, std::move(callback));
  } else {
    closed_callback_ = std::move(callback);
  }
}

std::string CoordinatorLink::remote_address() const {
  return connection_ ? connection_->remote_address() : std::string();
}

}  // namespace ddp::agent
