#include "launcher/check/check_node.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/host_name.h"
#include "common/base/host_port.h"
#include "common/store/tcp_store.h"
#include "launcher/check/local_probe.h"
#include "launcher/check/name_service.h"
#include "launcher/check/peer_probe.h"
#include "launcher/check/peer_server.h"
#include "launcher/check/verdict/verdict.h"
#include "launcher/machine/machine.h"

namespace ddp::check {
namespace {

constexpr Store::Timeout kStoreLimit{30'000};
// Nodes take a different time for their disks and names, and for slow links.
constexpr Duration kStageLimit{60'000};

// What the worker's environment says.
struct Place {
  int node = 0;
  int nodes = 1;
  int local_rank = 0;
  int workers = 1;
  int world_size = 1;
  std::string round;
  std::string store_host;
  int store_port = 0;
};

struct Settings {
  bool json = false;
  std::string check_dir;
  std::string address;  // Of this node; empty: the one from which it reaches the store.
};

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const std::string_view view(text);
  int value = otherwise;
  std::from_chars(view.data(), view.data() + view.size(), value);
  return value;
}

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Place own_place() {
  return {.node = number("GROUP_RANK", 0),
          .nodes = number("GROUP_WORLD_SIZE", 1),
          .local_rank = number("LOCAL_RANK", 0),
          .workers = number("LOCAL_WORLD_SIZE", 1),
          .world_size = number("WORLD_SIZE", 1),
          .round = text("TORCHELASTIC_RESTART_COUNT"),
          .store_host = text("MASTER_ADDR"),
          .store_port = number("MASTER_PORT", 0)};
}

// The address at which the other nodes reach this one.
std::string own_address(const Place& place, const Settings& settings, const LocalFacts& facts) {
  if (!settings.address.empty()) return settings.address;
  const std::string address = machine::source_address(place.store_host);
  if (!address.empty() && !is_loopback(address)) return address;
  for (const std::string& other : facts.name_addresses) {
    if (!is_loopback(other)) return other;
  }
  return address;
}

// The nodes of a check, as one of them sees them. The store has the keys PREFIX/place/NODE and
// PREFIX/facts/NODE; all go through the stages together.
class Meeting {
 public:
  Meeting(std::unique_ptr<Store> store, const Place& place)
      : store_(std::move(store)),
        place_(place),
        prefix_(fmt::format("ddp_run_check/{}/", place.round)) {}

  Result<void> run(const LocalFacts& local, const std::string& address);
  // Of all nodes, by rank. Those that have not answered have no host.
  Result<std::vector<NodeFacts>> collect();
  // Keeps this node's port open until the first node has everything.
  void wait_for_end() { static_cast<void>(store_->get(prefix_ + "over", kStageLimit)); }
  Result<void> end() { return store_->set(prefix_ + "over", "1"); }

 private:
  Result<std::vector<std::optional<std::string>>> read_of_all(std::string_view key);
  Result<std::vector<PeerPlace>> places();
  Result<void> wait_for_all(const std::string& stage);
  void measure(const std::vector<PeerPlace>& places, int neighbour, NodeFacts& facts);

  std::unique_ptr<Store> store_;
  Place place_;
  std::string prefix_;
  std::unique_ptr<PeerServer> server_;
};

// What each node has put under `key` in time; nothing for the others.
Result<std::vector<std::optional<std::string>>> Meeting::read_of_all(std::string_view key) {
  std::vector<std::optional<std::string>> values(static_cast<std::size_t>(place_.nodes));
  const TimePoint deadline = Clock::now() + kStageLimit;
  for (int node = 0; node < place_.nodes; ++node) {
    const auto left = std::chrono::duration_cast<Duration>(deadline - Clock::now());
    auto value =
        store_->get(fmt::format("{}{}/{}", prefix_, key, node), std::max(left, Store::kDoNotWait));
    if (!value && value.error().code != Errc::kTimeout) return value.error();
    if (value) values[static_cast<std::size_t>(node)] = std::move(*value);
  }
  return values;
}

// Those of the other nodes that have come in time.
Result<std::vector<PeerPlace>> Meeting::places() {
  const auto values = read_of_all("place");
  if (!values) return values.error();
  std::vector<PeerPlace> places;
  for (int node = 0; node < place_.nodes; ++node) {
    const auto& value = (*values)[static_cast<std::size_t>(node)];
    if (node == place_.node || !value) continue;
    auto place = decode_peer_place(*value);
    if (!place) return place.error();
    places.push_back(std::move(*place));
  }
  return places;
}

// Nobody measures while others still do something else. A node that does not come is waited for,
// but not forever.
Result<void> Meeting::wait_for_all(const std::string& stage) {
  const auto count = store_->add(fmt::format("{}{}/count", prefix_, stage), 1);
  if (!count) return count.error();
  const std::string all = fmt::format("{}{}/all", prefix_, stage);
  if (*count == place_.nodes) return store_->set(all, "1");
  const auto come = store_->get(all, kStageLimit);
  if (!come && come.error().code != Errc::kTimeout) return come.error();
  return {};
}

void Meeting::measure(const std::vector<PeerPlace>& places, int neighbour, NodeFacts& facts) {
  for (PeerFacts& peer : facts.peers) {
    if (peer.node != neighbour || !peer.error.empty() || peer.is_neighbour) continue;
    const auto place = std::find_if(places.begin(), places.end(), [&](const PeerPlace& candidate) {
      return candidate.node == neighbour;
    });
    measure_link(*place, peer);
  }
}

Result<void> Meeting::run(const LocalFacts& local, const std::string& address) {
  auto server = PeerServer::start();
  if (!server) return server.error();
  server_ = std::move(*server);
  const PeerPlace own{.node = place_.node,
                      .host = local.host,
                      .address = address,
                      .port = server_->port(),
                      .token = server_->token()};
  if (auto told = store_->set(fmt::format("{}place/{}", prefix_, place_.node), encode(own)); !told)
    return told;
  const auto others = places();
  if (!others) return others.error();
  NodeFacts facts{.node = place_.node, .local = local, .peers = meet_peers(*others)};
  // One after the other, each way round the ring: so two nodes measure a slow one from both sides.
  const int last = place_.nodes - 1;
  for (const int step : {1, last}) {
    if (auto all = wait_for_all(fmt::format("link{}", step == 1 ? 1 : 2)); !all) return all;
    measure(*others, (place_.node + step) % place_.nodes, facts);
  }
  return store_->set(fmt::format("{}facts/{}", prefix_, place_.node), encode(facts));
}

Result<std::vector<NodeFacts>> Meeting::collect() {
  const auto values = read_of_all("facts");
  if (!values) return values.error();
  std::vector<NodeFacts> nodes(values->size());
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto& value = (*values)[node];
    if (!value) continue;
    auto facts = decode_node_facts(*value);
    if (!facts) return facts.error();
    nodes[node] = std::move(*facts);
  }
  return nodes;
}

// Nodes of one host, or with one name, are told apart by their ranks.
void tell_apart(std::vector<NodeFacts>& nodes) {
  std::map<std::string, int> count;
  for (const NodeFacts& node : nodes) ++count[node.local.host];
  for (NodeFacts& node : nodes) {
    if (!node.local.host.empty() && count[node.local.host] > 1)
      node.local.host += fmt::format(":{}", node.node);
  }
}

int show(std::vector<NodeFacts> nodes, const Settings& settings) {
  tell_apart(nodes);
  const std::vector<Verdict> verdicts = judge(nodes);
  std::fputs((settings.json ? json_text(verdicts) : table(verdicts)).c_str(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return kExitInternal;
  return is_fit(verdicts) ? kExitSuccess : kExitUnfit;
}

int fail(const Error& error) {
  std::fprintf(stderr, "ddp-run check: %s\n", error.message.c_str());
  return exit_code_of(error);
}

int meet(const Place& place, const LocalFacts& local, const Settings& settings) {
  auto store = connect_tcp_store(place.store_host, place.store_port, kStoreLimit);
  if (!store) return fail(store.error());
  Meeting meeting(std::move(*store), place);
  if (const auto met = meeting.run(local, own_address(place, settings, local)); !met)
    return fail(met.error());
  if (place.node != 0) {
    meeting.wait_for_end();
    return kExitSuccess;
  }
  auto nodes = meeting.collect();
  if (!nodes) return fail(nodes.error());
  if (const auto ended = meeting.end(); !ended) return fail(ended.error());
  return show(std::move(*nodes), settings);
}

}  // namespace

std::optional<int> run_check_node(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != kNodeCommand) return std::nullopt;
  Settings settings;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--json") settings.json = true;
    if (i + 1 == arguments.size()) break;
    if (arguments[i] == "--check-dir") settings.check_dir = arguments[++i];
    if (arguments[i] == "--address") settings.address = arguments[++i];
  }
  const Place place = own_place();
  // The others are started only so that the node is as full as in the job.
  if (place.local_rank != 0) return kExitSuccess;
  const LocalFacts local = probe_node({.host = host_name(),
                                       .workers = place.workers,
                                       .world_size = place.world_size,
                                       .nodes = place.nodes,
                                       .check_dir = settings.check_dir});
  if (place.nodes == 1) return show({{.node = 0, .local = local, .peers = {}}}, settings);
  return meet(place, local, settings);
}

}  // namespace ddp::check
