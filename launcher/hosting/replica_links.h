#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/net/frame_connection.h"

namespace ddp::hosting {

// Connections to the daemons of other ddp-runs of the job, one for each, made when there is
// something to send. What cannot be sent at once is dropped: Raft repeats itself. Nothing is
// received, because the others answer over connections of their own. On the thread of `io`.
class ReplicaLinks {
 public:
  // `closed`: the process at the other end has closed the connection. Comes from the event loop.
  ReplicaLinks(asio::io_context& io, net::Credentials credentials,
               std::function<void(const HostPort& peer)> closed);
  ~ReplicaLinks();
  ReplicaLinks(const ReplicaLinks&) = delete;
  ReplicaLinks& operator=(const ReplicaLinks&) = delete;

  void send(const HostPort& to, std::string payload);

 private:
  using Key = std::pair<std::string, int>;
  struct Link {
    std::shared_ptr<net::FrameConnection>
        connection;  // Null while connecting, and after a failure.
    std::vector<std::string> waiting;
    bool connecting = false;
    TimePoint not_before;  // The next attempt.
    TimePoint used;
  };

  void connect(const Key& key);
  void forget_unused();

  asio::io_context& io_;
  const net::Credentials credentials_;
  const std::function<void(const HostPort& peer)> closed_;
  std::map<Key, Link> links_;
  TimePoint next_look_;
  // For callbacks of connections that outlive this object.
  std::shared_ptr<ReplicaLinks*> self_ = std::make_shared<ReplicaLinks*>(this);
};

}  // namespace ddp::hosting
