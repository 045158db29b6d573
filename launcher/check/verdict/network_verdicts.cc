// What can be said of all nodes together.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/host_port.h"
#include "launcher/check/verdict/verdict.h"

namespace ddp::check {
namespace {

// From one node to another, by group rank.
using Way = std::pair<std::size_t, std::size_t>;

bool has_answered(const NodeFacts& node) { return !node.local.host.empty(); }

class Network {
 public:
  explicit Network(const std::vector<NodeFacts>& nodes);
  // Appends what it finds about the node.
  void judge(std::size_t node, std::vector<Verdict>& verdicts) const;

 private:
  // What `from` saw of `to`; null if it has not answered.
  const PeerFacts* seen(std::size_t from, std::size_t to) const;
  std::vector<std::string> hosts(const std::vector<std::size_t>& ranks) const;
  bool reaches_nobody(std::size_t node) const;
  double bandwidth(std::size_t node) const;

  Verdict port(std::size_t node) const;
  Verdict name(std::size_t node) const;
  Verdict clock(std::size_t node) const;
  Verdict latency(std::size_t node) const;
  Verdict link(std::size_t node) const;
  Verdict verdict(std::size_t node, std::string thing) const;

  const std::vector<NodeFacts>& nodes_;
  std::set<Way> cut_;           // Ways that are not open.
  std::set<std::size_t> mute_;  // Nodes that reach nobody, though others do.
};

Network::Network(const std::vector<NodeFacts>& nodes) : nodes_(nodes) {
  for (std::size_t from = 0; from < nodes.size(); ++from) {
    for (std::size_t to = 0; to < nodes.size(); ++to) {
      const PeerFacts* peer = seen(from, to);
      if (peer != nullptr && !peer->error.empty()) cut_.emplace(from, to);
    }
  }
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (reaches_nobody(node)) mute_.insert(node);
  }
}

const PeerFacts* Network::seen(std::size_t from, std::size_t to) const {
  for (const PeerFacts& peer : nodes_[from].peers) {
    if (peer.node == static_cast<int>(to)) return &peer;
  }
  return nullptr;
}

std::vector<std::string> Network::hosts(const std::vector<std::size_t>& ranks) const {
  std::vector<std::string> hosts;
  for (const std::size_t rank : ranks) hosts.push_back(nodes_[rank].local.host);
  return hosts;
}

// With two nodes, nobody can tell on which side the way is closed.
bool Network::reaches_nobody(std::size_t node) const {
  const auto& peers = nodes_[node].peers;
  if (peers.size() < 2) return false;
  bool others_get_through = false;
  for (const PeerFacts& peer : peers) {
    if (peer.error.empty()) return false;
    const auto to = static_cast<std::size_t>(peer.node);
    for (std::size_t from = 0; from < nodes_.size(); ++from) {
      const bool open = from != node && seen(from, to) != nullptr && !cut_.contains({from, to});
      others_get_through = others_get_through || open;
    }
  }
  return others_get_through;
}

Verdict Network::verdict(std::size_t node, std::string thing) const {
  return {
      .node = static_cast<int>(node), .host = nodes_[node].local.host, .thing = std::move(thing)};
}

Verdict Network::port(std::size_t node) const {
  Verdict out = verdict(node, "port");
  out.limit = "every other node reaches it";
  const std::string remedy =
      "open all TCP ports between the nodes (nft list ruleset, ip route, security groups), or name "
      "the right address with --local-addr";
  if (mute_.contains(node)) {
    out.state = State::kFailed;
    out.measured = fmt::format("it reaches no other node: {}", nodes_[node].peers.front().error);
    out.remedy = remedy;
    return out;
  }
  std::vector<std::size_t> without;
  std::string why;
  for (std::size_t from = 0; from < nodes_.size(); ++from) {
    if (!cut_.contains({from, node}) || mute_.contains(from)) continue;
    without.push_back(from);
    why = seen(from, node)->error;
  }
  if (without.empty()) {
    out.measured = "reached by all";
    return out;
  }
  out.state = State::kFailed;
  out.measured = fmt::format("not reached by {}: {}", fmt::join(hosts(without), ", "), why);
  out.remedy = remedy;
  return out;
}

// Its name on the other nodes: forwards and back.
Verdict Network::name(std::size_t node) const {
  Verdict out = verdict(node, "name elsewhere");
  out.measured = "known to all";
  std::vector<std::size_t> unknown, elsewhere, nameless, slow;
  for (std::size_t from = 0; from < nodes_.size(); ++from) {
    const PeerFacts* peer = seen(from, node);
    if (peer == nullptr || peer->address.empty()) continue;
    const auto& addresses = peer->name_addresses;
    const std::string reached = peer->address.substr(0, peer->address.rfind(':'));
    const std::string bare =
        reached.starts_with('[') ? reached.substr(1, reached.size() - 2) : reached;
    if (!peer->name_error.empty()) {
      unknown.push_back(from);
    } else if (std::find(addresses.begin(), addresses.end(), bare) == addresses.end()) {
      elsewhere.push_back(from);
    } else if (peer->reverse_name.empty()) {
      nameless.push_back(from);
    }
    if (peer->name_ms > limits::kNameMs) slow.push_back(from);
  }
  std::vector<std::string> parts;
  const auto say = [&](const std::vector<std::size_t>& ranks, const char* what) {
    if (!ranks.empty()) parts.push_back(fmt::format("{} {}", what, fmt::join(hosts(ranks), ", ")));
  };
  say(unknown, "unknown to");
  say(elsewhere, "another address for");
  say(nameless, "its address has no name for");
  say(slow, "a slow look-up for");
  if (parts.empty()) return out;
  // ddp-run itself and PyTorch use addresses; scripts, ssh and Kerberos use names.
  out.state = State::kWarning;
  out.measured = fmt::format("{}", fmt::join(parts, "; "));
  out.remedy = "give all nodes the same names in /etc/hosts or DNS, and the addresses, too";
  return out;
}

Verdict Network::clock(std::size_t node) const {
  Verdict out = verdict(node, "clock");
  out.limit = fmt::format("within {:.0f} ms of {}", limits::kClockMs, nodes_[0].local.host);
  const PeerFacts* first = seen(node, 0);
  if (node == 0) {
    out.measured = "the others are compared with it";
    out.limit.clear();
    return out;
  }
  if (first == nullptr || !first->has_clock) {
    out.state = State::kWarning;
    out.measured = "not compared, because the first node was not reached";
    out.remedy = "see the line about ports";
    return out;
  }
  const double ahead = -first->clock_ms;
  out.measured = fmt::format("{:+.1f} ms (right to {:.1f} ms)", ahead, first->clock_error_ms);
  if (std::abs(ahead) - first->clock_error_ms <= limits::kClockMs) return out;
  out.state = State::kFailed;
  out.remedy = "let chrony or systemd-timesyncd set the clocks of both nodes (chronyc tracking)";
  return out;
}

Verdict Network::latency(std::size_t node) const {
  Verdict out = verdict(node, "latency");
  double best = 0;
  for (const PeerFacts& peer : nodes_[node].peers) {
    if (!peer.is_neighbour || peer.latency_ms <= 0) continue;
    best = best > 0 ? std::min(best, peer.latency_ms) : peer.latency_ms;
  }
  out.limit = fmt::format("at most {:.0f} ms", limits::kLatencyMs);
  if (best <= 0) {
    out.state = State::kFailed;
    out.measured = "its neighbours were not reached";
    out.remedy = "see the line about ports";
    return out;
  }
  out.measured = fmt::format("{:.3f} ms", best);
  if (best <= limits::kLatencyMs) return out;
  out.state = State::kFailed;
  out.remedy = "use nodes of one network, and the fast interface (--local-addr)";
  return out;
}

// What the node can send, or receive if that is less. Each is the better one of two ways, so that
// a slow neighbour is not taken for a slow node.
double Network::bandwidth(std::size_t node) const {
  double sent = 0;
  double received = 0;
  for (const PeerFacts& peer : nodes_[node].peers) sent = std::max(sent, peer.mb_per_s);
  for (std::size_t from = 0; from < nodes_.size(); ++from) {
    if (const PeerFacts* peer = seen(from, node)) received = std::max(received, peer->mb_per_s);
  }
  return std::min(sent, received);
}

Verdict Network::link(std::size_t node) const {
  Verdict out = verdict(node, "bandwidth");
  const double own = bandwidth(node);
  std::vector<double> others;
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    if (other != node && bandwidth(other) > 0) others.push_back(bandwidth(other));
  }
  double least = limits::kLinkMbPerS;
  out.limit = fmt::format("at least {:.0f} MB/s", least);
  if (others.size() >= 2) {
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
    std::nth_element(others.begin(), middle, others.end());
    if (const double share = limits::kLinkShare * *middle; share > least) {
      least = share;
      out.limit = fmt::format("at least {:.0f} MB/s, {:.0f} % of what others have", least,
                              limits::kLinkShare * 100);
    }
  }
  out.measured = fmt::format("{:.0f} MB/s", own);
  if (own >= least) return out;
  out.state = State::kFailed;
  out.remedy =
      "look at the speed of its interface (ethtool), at its errors (ip -s link), and whether "
      "--local-addr names the fast one";
  return out;
}

void Network::judge(std::size_t node, std::vector<Verdict>& verdicts) const {
  for (const auto test :
       {&Network::port, &Network::name, &Network::clock, &Network::latency, &Network::link}) {
    verdicts.push_back((this->*test)(node));
  }
}

}  // namespace

std::vector<Verdict> judge(const std::vector<NodeFacts>& nodes) {
  std::vector<Verdict> verdicts;
  const Network network(nodes);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const int rank = static_cast<int>(node);
    if (!has_answered(nodes[node])) {
      verdicts.push_back({.node = rank,
                          .host = fmt::format("node {}", rank),
                          .thing = "answer",
                          .state = State::kFailed,
                          .measured = "it has not answered in time",
                          .remedy = "see what its ddp-run prints"});
      continue;
    }
    const auto local = judge_node(rank, nodes[node].local);
    verdicts.insert(verdicts.end(), local.begin(), local.end());
    if (nodes.size() > 1) network.judge(node, verdicts);
  }
  return verdicts;
}

}  // namespace ddp::check
