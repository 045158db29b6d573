#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/data_streams.h"
#include "tests/support/inproc.h"
#include "worker/transport/socket_stream.h"
#include "worker/transport/transport.h"

// Worlds of threads whose links use streams made by the test, to count the bytes on the wire or to
// hold them back.
namespace ddp::test {

// One end of a link, that of rank `from`.
using StreamMaker =
    std::function<std::unique_ptr<transport::DataStream>(Rank from, Rank to, UniqueFd socket)>;

// Element r is rank r's transport.
inline std::vector<std::unique_ptr<transport::Transport>> transports_over(
    const std::vector<int>& nodes, const StreamMaker& make) {
  const auto index = [](int number) { return static_cast<std::size_t>(number); };
  const transport::Topology world(nodes, 0);
  std::vector<std::shared_ptr<transport::Segment>> segments;
  for (const int size : nodes) segments.push_back(std::move(make_segment(size, 0)).value());
  std::vector<std::vector<std::unique_ptr<transport::Link>>> links(index(world.world_size()));
  for (auto& of_rank : links) of_rank.resize(nodes.size());
  for (Rank rank = 0; rank < world.world_size(); ++rank) {
    const transport::Topology place(nodes, rank);
    for (int node = place.node() + 1; node < place.nodes(); ++node) {
      const Rank peer = place.lane_peer(node);
      if (peer < 0) continue;
      auto [lower, upper] = socket_pair();
      auto [lower_control, upper_control] = socket_pair();
      links[index(rank)][index(node)] = std::make_unique<transport::Link>(
          make(rank, peer, std::move(lower)), std::move(lower_control), peer, node);
      links[index(peer)][index(place.node())] = std::make_unique<transport::Link>(
          make(peer, rank, std::move(upper)), std::move(upper_control), rank, place.node());
    }
  }
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (Rank rank = 0; rank < world.world_size(); ++rank) {
    transport::Topology place(nodes, rank);
    auto segment = segments[index(place.node())];
    auto arena = std::make_shared<transport::Arena>(segment->mapping(), place.local_rank());
    transports.push_back(std::make_unique<transport::Transport>(
        std::move(place), std::move(segment), std::move(arena), std::move(links[index(rank)]),
        false));
  }
  return transports;
}

// Counts the bytes that it sends.
class CountedStream : public transport::SocketStream {
 public:
  CountedStream(UniqueFd socket, std::atomic<std::size_t>& sent)
      : transport::SocketStream(std::move(socket)), sent_(sent) {}

  ssize_t send_some(const std::byte* data, std::size_t bytes) override {
    const ssize_t moved = transport::SocketStream::send_some(data, bytes);
    if (moved > 0) sent_ += static_cast<std::size_t>(moved);
    return moved;
  }

 private:
  std::atomic<std::size_t>& sent_;
};

// Receives so many bytes, and more only after release.
struct Dam {
  std::atomic<std::size_t> allowed{0};
  std::atomic<bool> reached{false};
  std::atomic<bool> released{false};
};

class HeldStream : public transport::SocketStream {
 public:
  HeldStream(UniqueFd socket, Dam& dam) : transport::SocketStream(std::move(socket)), dam_(dam) {}

  ssize_t receive_some(std::byte* data, std::size_t bytes) override {
    if (!dam_.released && received_ >= dam_.allowed) {
      dam_.reached = true;
      return 0;
    }
    const ssize_t moved = transport::SocketStream::receive_some(
        data, dam_.released ? bytes : std::min(bytes, dam_.allowed - received_));
    if (moved > 0) received_ += static_cast<std::size_t>(moved);
    return moved;
  }

 private:
  Dam& dam_;
  std::size_t received_ = 0;
};

}  // namespace ddp::test
