#include "worker/runtime/node_links.h"

#include <charconv>
#include <numeric>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/transport/tcp.h"

namespace ddp {

Outcome NodeLinks::publish(const std::string& key, const std::string& value) {
  auto set = store_.set(prefix_ + key, value);
  if (!set) return Failure{set.error().code, -1, set.error().message};
  return {};
}

Outcome NodeLinks::read(const std::string& key, std::string& value) {
  const auto left = std::chrono::ceil<Duration>(deadline_ - Clock::now());
  auto got = store_.get(prefix_ + key, std::max(left, Duration(1)));
  if (!got) return explain(got.error());
  value = std::move(*got);
  return {};
}

Failure NodeLinks::explain(const Error& error) {
  if (error.code == Errc::kTimeout) return missing(error.message);
  return {error.code, -1, error.message};
}

// Which ranks have not even published their address.
Failure NodeLinks::missing(const std::string& reason) {
  std::string list;
  Rank first = -1;
  for (Rank rank = 0; rank < worker_.world_size; ++rank) {
    auto there = store_.check({fmt::format("{}/addr/{}", prefix_, rank)});
    if (!there || *there) continue;
    if (first < 0) first = rank;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
  }
  if (first < 0) return {Errc::kTimeout, -1, reason};
  return {
      Errc::kTimeout, first,
      fmt::format(
          "the process group of round {} is not complete: of {} ranks, rank {} did not come; {}",
          worker_.round, worker_.world_size, list, reason)};
}

Outcome NodeLinks::read_node_sizes(std::vector<int>& sizes) {
  for (int node = 0; node < worker_.nodes; ++node) {
    std::string text;
    if (auto failure = read(fmt::format("/node/{}", node), text)) return failure;
    int size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1) {
      return Failure{Errc::kProtocol, -1,
                     fmt::format("node {} published '{}' as its number of workers", node, text)};
    }
    sizes.push_back(size);
  }
  const int total = std::accumulate(sizes.begin(), sizes.end(), 0);
  const int before = std::accumulate(sizes.begin(), sizes.begin() + worker_.node, 0);
  if (total != worker_.world_size || before + worker_.local_rank != worker_.rank ||
      sizes[static_cast<std::size_t>(worker_.node)] != worker_.local_size) {
    return Failure{
        Errc::kMismatch, -1,
        fmt::format(
            "the nodes have {} workers ({}), but this one has RANK={} WORLD_SIZE={} GROUP_RANK={} "
            "LOCAL_RANK={} LOCAL_WORLD_SIZE={}",
            total, fmt::join(sizes, " + "), worker_.rank, worker_.world_size, worker_.node,
            worker_.local_rank, worker_.local_size)};
  }
  return {};
}

Outcome NodeLinks::connect(const std::vector<std::string>& addresses,
                           std::shared_ptr<Segment> segment,
                           std::unique_ptr<Transport>& transport) {
  auto listener = TcpListener::open();
  if (!listener) return Failure{listener.error().code, worker_.rank, listener.error().message};
  if (auto failure =
          publish(fmt::format("/addr/{}", worker_.rank), (*listener)->endpoint(addresses)))
    return failure;
  if (worker_.local_rank == 0) {
    auto failure =
        publish(fmt::format("/node/{}", worker_.node), std::to_string(worker_.local_size));
    if (failure) return failure;
  }
  std::vector<int> sizes;
  if (auto failure = read_node_sizes(sizes)) return failure;

  Topology topology(sizes, worker_.rank);
  std::unique_ptr<Link> previous;
  std::unique_ptr<Link> next;
  // Towards the last node first: it has nobody to connect to, so it accepts at once, and the others
  // after it.
  if (const Rank peer = topology.next_in_lane(); peer >= 0) {
    std::string endpoint;
    if (auto failure = read(fmt::format("/addr/{}", peer), endpoint)) return failure;
    const LinkIdentity identity{worker_.round, worker_.world_size, worker_.rank, worker_.node,
                                peer,          worker_.node + 1};
    auto link = connect_link(endpoint, identity, deadline_);
    if (!link) return explain(link.error());
    next = std::move(*link);
  }
  if (const Rank peer = topology.previous_in_lane(); peer >= 0) {
    const LinkIdentity identity{worker_.round,    worker_.world_size, peer,
                                worker_.node - 1, worker_.rank,       worker_.node};
    auto link = (*listener)->accept(identity, deadline_);
    if (!link) return explain(link.error());
    previous = std::move(*link);
  }
  const bool spin = spinning_pays(topology.local_size());
  transport = std::make_unique<Transport>(std::move(topology), std::move(segment),
                                          std::move(previous), std::move(next), spin);
  return {};
}

}  // namespace ddp
