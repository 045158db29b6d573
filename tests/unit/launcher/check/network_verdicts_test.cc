// Which node is to blame for what nodes have seen of each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/check/verdict/verdict.h"

namespace ddp::check {
namespace {

using ::testing::HasSubstr;

// Healthy nodes n0, n1, ... that all see each other, with links around a ring.
struct Cluster {
  explicit Cluster(int count) {
    for (int node = 0; node < count; ++node) {
      NodeFacts facts;
      facts.node = node;
      facts.local.host = name(node);
      facts.local.nodes = count;
      facts.local.shm_free = facts.local.memory = 1LL << 40;
      facts.local.soft_files = facts.local.hard_files = -1;
      facts.local.name_addresses = {address(node)};
      for (int other = 0; other < count; ++other) {
        if (other == node) continue;
        PeerFacts peer;
        peer.node = other;
        peer.address = address(other) + ":5000";
        peer.name_addresses = {address(other)};
        peer.reverse_name = name(other);
        peer.has_clock = true;
        peer.clock_error_ms = 0.1;
        peer.is_neighbour = (node + 1) % count == other || (other + 1) % count == node;
        if (peer.is_neighbour) {
          peer.latency_ms = 0.1;
          peer.mb_per_s = 1'000;
        }
        facts.peers.push_back(peer);
      }
      nodes.push_back(facts);
    }
  }
  static std::string name(int node) { return "n" + std::to_string(node); }
  static std::string address(int node) { return "10.0.0." + std::to_string(node + 1); }
  PeerFacts& seen(int from, int to) {
    for (PeerFacts& peer : nodes.at(static_cast<std::size_t>(from)).peers) {
      if (peer.node == to) return peer;
    }
    throw std::out_of_range("no such way");
  }
  void cut(int from, int to) {
    PeerFacts& peer = seen(from, to);
    peer.error = "timed out";
    peer.has_clock = false;
    peer.latency_ms = peer.mb_per_s = 0;
  }
  // "n1 port", "n2 clock", ...: what is not all right.
  std::vector<std::string> failed(State state = State::kFailed) const {
    std::vector<std::string> found;
    for (const Verdict& verdict : judge(nodes)) {
      if (verdict.state == state) found.push_back(verdict.host + " " + verdict.thing);
      EXPECT_EQ(verdict.state == State::kOk, verdict.remedy.empty()) << verdict.thing;
    }
    return found;
  }
  Verdict verdict(int node, const std::string& thing) const {
    for (const Verdict& verdict : judge(nodes)) {
      if (verdict.node == node && verdict.thing == thing) return verdict;
    }
    ADD_FAILURE() << "no verdict about " << thing;
    return {};
  }
  std::vector<NodeFacts> nodes;
};

using Names = std::vector<std::string>;

TEST(NetworkVerdicts, HealthyNodesAreFit) {
  for (const int count : {1, 2, 3, 8}) {
    const Cluster cluster(count);
    EXPECT_EQ(cluster.failed(), Names{}) << count;
    EXPECT_EQ(cluster.failed(State::kWarning), Names{}) << count;
  }
}

TEST(NetworkVerdicts, AClosedPortIsItsNodesFault) {
  Cluster cluster(4);
  cluster.cut(0, 2);
  EXPECT_EQ(cluster.failed(), Names{"n2 port"});
  EXPECT_EQ(cluster.verdict(2, "port").measured, "not reached by n0: timed out");
  cluster.cut(1, 2);
  cluster.cut(3, 2);
  EXPECT_EQ(cluster.failed(), (Names{"n2 port", "n2 bandwidth"}));
  EXPECT_EQ(cluster.verdict(2, "port").measured, "not reached by n0, n1, n3: timed out");
}

TEST(NetworkVerdicts, ANodeThatReachesNobodyIsTheOneToBlame) {
  Cluster cluster(3);
  cluster.cut(1, 0);
  cluster.cut(1, 2);
  EXPECT_EQ(cluster.failed(), (Names{"n1 port", "n1 latency", "n1 bandwidth"}));
  EXPECT_THAT(cluster.verdict(1, "port").measured, HasSubstr("it reaches no other node"));
}

TEST(NetworkVerdicts, OfTwoNodesTheOneThatIsNotReachedIsNamed) {
  Cluster cluster(2);
  cluster.cut(0, 1);
  EXPECT_EQ(cluster.failed()[0], "n0 latency");
  EXPECT_EQ(cluster.verdict(1, "port").state, State::kFailed);
  EXPECT_EQ(cluster.verdict(0, "port").state, State::kOk);
}

TEST(NetworkVerdicts, ASlowNodeIsToldFromItsNeighbours) {
  Cluster cluster(4);
  for (const int other : {0, 2}) {
    cluster.seen(1, other).mb_per_s = 49.9;
    cluster.seen(other, 1).mb_per_s = 49.9;
  }
  EXPECT_EQ(cluster.failed(), Names{"n1 bandwidth"});
  EXPECT_EQ(cluster.verdict(1, "bandwidth").measured, "50 MB/s");
  EXPECT_EQ(cluster.verdict(1, "bandwidth").limit, "at least 250 MB/s, 25 % of what others have");
}

TEST(NetworkVerdicts, SlowInOneDirectionIsSlow) {
  Cluster out(3);
  out.seen(1, 0).mb_per_s = out.seen(1, 2).mb_per_s = 10;
  EXPECT_EQ(out.failed(), Names{"n1 bandwidth"});
  Cluster in(3);
  in.seen(0, 1).mb_per_s = in.seen(2, 1).mb_per_s = 10;
  EXPECT_EQ(in.failed(), Names{"n1 bandwidth"});
}

TEST(NetworkVerdicts, BandwidthIsComparedWithTheOthersFromThreeNodesOn) {
  Cluster cluster(3);
  for (const int other : {0, 2}) cluster.seen(1, other).mb_per_s = 250;
  EXPECT_EQ(cluster.failed(), Names{});
  for (const int other : {0, 2}) cluster.seen(1, other).mb_per_s = 249;
  EXPECT_EQ(cluster.failed(), Names{"n1 bandwidth"});
  Cluster two(2);
  two.seen(0, 1).mb_per_s = 50;
  EXPECT_EQ(two.failed(), Names{});
  two.seen(0, 1).mb_per_s = 49;
  EXPECT_EQ(two.failed(), (Names{"n0 bandwidth", "n1 bandwidth"}));
}

TEST(NetworkVerdicts, LatencyIsTheBestOfANodesLinks) {
  Cluster cluster(3);
  cluster.seen(1, 0).latency_ms = cluster.seen(1, 2).latency_ms = 10;
  EXPECT_EQ(cluster.failed(), Names{});
  cluster.seen(1, 0).latency_ms = cluster.seen(1, 2).latency_ms = 10.1;
  EXPECT_EQ(cluster.failed(), Names{"n1 latency"});
  EXPECT_EQ(cluster.verdict(1, "latency").measured, "10.100 ms");
}

TEST(NetworkVerdicts, ClocksAreComparedWithTheFirstNode) {
  for (const double sign : {1.0, -1.0}) {
    Cluster cluster(3);
    cluster.seen(2, 0).clock_ms = sign * 1'000.1;  // Right to 0.1 ms.
    EXPECT_EQ(cluster.failed(), Names{});
    cluster.seen(2, 0).clock_ms = sign * 1'000.2;
    EXPECT_EQ(cluster.failed(), Names{"n2 clock"});
    // The first node is ahead, so this one is behind.
    EXPECT_EQ(cluster.verdict(2, "clock").measured,
              sign > 0 ? "-1000.2 ms (right to 0.1 ms)" : "+1000.2 ms (right to 0.1 ms)");
    EXPECT_EQ(cluster.verdict(2, "clock").limit, "within 1000 ms of n0");
  }
}

TEST(NetworkVerdicts, NamesThatDifferAreWarnings) {
  Cluster cluster(3);
  cluster.seen(0, 1).name_error = "n1 has no address";
  cluster.seen(2, 1).name_addresses = {"127.0.1.1"};
  cluster.seen(0, 2).reverse_name = "";
  cluster.seen(1, 2).name_ms = 2'001;
  EXPECT_EQ(cluster.failed(), Names{});
  EXPECT_EQ(cluster.failed(State::kWarning), (Names{"n1 name elsewhere", "n2 name elsewhere"}));
  EXPECT_EQ(cluster.verdict(1, "name elsewhere").measured, "unknown to n0; another address for n2");
  EXPECT_EQ(cluster.verdict(2, "name elsewhere").measured,
            "its address has no name for n0; a slow look-up for n1");
}

TEST(NetworkVerdicts, ANodeThatDoesNotAnswerIsNamed) {
  Cluster cluster(3);
  cluster.nodes[1] = {};
  for (NodeFacts& node : cluster.nodes)
    std::erase_if(node.peers, [](const PeerFacts& peer) { return peer.node == 1; });
  EXPECT_EQ(cluster.failed(), Names{"node 1 answer"});
}

}  // namespace
}  // namespace ddp::check
