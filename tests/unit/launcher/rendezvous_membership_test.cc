// Who is in a round, when it starts, and with which ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Harness = CoordinatorHarness;

std::vector<std::string> hosts_of(const wire::RoundStart& start) {
  std::vector<std::string> hosts;
  for (const wire::Member& member : start.members) hosts.push_back(member.host);
  return hosts;
}

TEST(Membership, TheRoundStartsAtOnceWhenAllNodesAreIn) {
  Harness h;
  wire::Join a = Harness::node("a", 2, 2);
  a.nproc = 3;
  wire::Join b = Harness::node("b", 2, 2);
  b.nproc = 2;
  b.address = "192.168.7.7";
  const auto ca = h.join(a);
  EXPECT_EQ(h.last<wire::Waiting>(ca).text, "1 of 2 nodes is in (a); 1 missing, 60 s left");
  EXPECT_TRUE(h.rounds.empty());
  const auto cb = h.join(b);
  EXPECT_THAT(h.rounds, ElementsAre(0));
  const auto start = h.last<wire::RoundStart>(cb);
  EXPECT_EQ(start.round, 0);
  EXPECT_EQ(start.group_rank, 1);
  EXPECT_EQ(start.world_size, 5);
  EXPECT_EQ(start.reason, "first round");
  ASSERT_EQ(start.members.size(), 2u);
  EXPECT_EQ(start.members[0].first_rank, 0);
  EXPECT_EQ(start.members[1].first_rank, 3);
  EXPECT_EQ(start.members[0].address, "10.0.0.7") << "the connection's source address";
  EXPECT_EQ(start.members[1].address, "192.168.7.7") << "what the join says";
  EXPECT_EQ(h.last<wire::RoundStart>(ca).group_rank, 0);
  EXPECT_EQ(h.count<wire::Welcome>(ca), 1u);
}

// Ranks among the workers of a role are counted from them.
TEST(Membership, AllMembersAreToldEachOthersRoles) {
  Harness h;
  wire::Join a = Harness::node("a", 2, 2);
  a.role = "trainer";
  const auto ca = h.join(a);
  const auto cb = h.join(Harness::node("b", 2, 2));
  for (const auto connection : {ca, cb}) {
    const std::string text = wire::encode(h.last<wire::RoundStart>(connection));
    const auto start = std::get<wire::RoundStart>(wire::decode_coordinator_message(text).value());
    ASSERT_EQ(start.members.size(), 2u);
    EXPECT_EQ(start.members[0].role, "trainer");
    EXPECT_EQ(start.members[1].role, "default");
    EXPECT_THAT(text, Not(HasSubstr("\"default\""))) << "what most nodes have takes no room";
  }
}

TEST(Membership, WithEnoughNodesTheRoundWaitsForTheLastCall) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 4));
  h.join(Harness::node("b", 2, 4));
  EXPECT_EQ(h.last<wire::Waiting>(a).text,
            "2 of 4 nodes are in (a, b), enough to start; waiting 3 s more for others");
  h.pass(Duration{2'500});
  EXPECT_TRUE(h.rounds.empty());
  h.pass(Duration{500});
  EXPECT_EQ(h.last<wire::RoundStart>(a).world_size, 2);
}

TEST(Membership, ALastCallEndsWhenTooFewAreLeft) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 4));
  const auto b = h.join(Harness::node("b", 2, 4));
  h.disconnect(b);
  h.pass(Duration{4'000});
  EXPECT_TRUE(h.rounds.empty());
  EXPECT_THAT(h.last<wire::Waiting>(a).text,
              HasSubstr("1 of at least 2 nodes is in (a); 1 missing"));
}

TEST(Membership, MissingNodesAreNamedWhenTheJoinTimeoutPasses) {
  Harness h;
  wire::Join a = Harness::node("n0", 4, 4);
  a.node_rank = 0;
  wire::Join b = Harness::node("n2", 4, 4);
  b.node_rank = 2;
  const auto ca = h.join(a);
  h.join(b);
  EXPECT_THAT(h.last<wire::Waiting>(ca).text, HasSubstr("2 missing (node rank 1, 3)"));
  h.pass(Duration{60'000});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, kExitJoinTimeout);
  EXPECT_EQ(
      h.finished[0].summary,
      "only 2 of 4 nodes came to job job within 60 s; in: n0, n2; 2 missing (node rank 1, 3); "
      "each node needs the same --rdzv-endpoint and --rdzv-id");
  EXPECT_EQ(h.last<wire::Finish>(ca).exit_code, kExitJoinTimeout);
}

TEST(Membership, MissingNodesMayLackTheToken) {
  Harness h(CoreOptions{.has_token = true});
  h.join(Harness::node("n0", 2, 2));
  h.pass(Duration{60'000});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_THAT(h.finished[0].summary,
              HasSubstr("; each node needs the same --rdzv-endpoint, --rdzv-id and token "
                        "(--rdzv-token-file or DDP_RDZV_TOKEN)"));
}

// Each machine has a rendezvous of its own at localhost.
TEST(Membership, WhenAllCameOverLoopbackTheMessageNamesTheEndpoint) {
  const auto summary_for = [](const std::vector<std::string>& addresses) {
    Harness h;
    for (const std::string& address : addresses) {
      wire::Join join = Harness::node(address, 3, 3);
      join.address = address;
      h.join(join);
    }
    h.pass(Duration{60'000});
    return h.finished.empty() ? "" : h.finished[0].summary;
  };
  const auto tells = HasSubstr("localhost or another loopback address is another machine");
  EXPECT_THAT(summary_for({"127.0.0.1"}), tells);
  EXPECT_THAT(summary_for({"127.0.0.1", "::1"}), tells);
  EXPECT_THAT(summary_for({"127.0.0.1", "10.0.0.8"}), Not(tells));
}

TEST(Membership, WaitingIsRepeatedEveryFewSeconds) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2));
  EXPECT_EQ(h.count<wire::Waiting>(a), 1u);
  h.pass(Duration{5'000});
  EXPECT_EQ(h.count<wire::Waiting>(a), 2u);
  EXPECT_THAT(h.last<wire::Waiting>(a).text, HasSubstr("55 s left"));
}

TEST(Membership, HostsAreRankedAsPeopleCount) {
  Harness h;
  h.join(Harness::node("node10", 3, 3));
  h.join(Harness::node("node2", 3, 3));
  const auto c = h.join(Harness::node("node1", 3, 3));
  EXPECT_THAT(hosts_of(h.last<wire::RoundStart>(c)), ElementsAre("node1", "node2", "node10"));
}

TEST(Membership, AskedForNodeRanksAreGranted) {
  Harness h;
  wire::Join a = Harness::node("a", 2, 2);
  a.node_rank = 1;
  wire::Join b = Harness::node("b", 2, 2);
  b.node_rank = 0;
  const auto ca = h.join(a);
  h.join(b);
  EXPECT_EQ(h.last<wire::RoundStart>(ca).group_rank, 1);
}

TEST(Membership, AWishForARankThatIsTakenIsDropped) {
  Harness h;
  wire::Join a = Harness::node("a", 2, 2);
  a.node_rank = 1;
  a.node_rank_is_wish = true;
  wire::Join b = Harness::node("b", 2, 2);
  b.node_rank = 1;
  b.node_rank_is_wish = true;
  const auto ca = h.join(a);
  const auto cb = h.join(b);
  EXPECT_EQ(h.last<wire::Welcome>(ca).notice, "");
  EXPECT_EQ(h.last<wire::Welcome>(cb).notice,
            "--node-rank 1 is taken by a; this node gets another rank. Give each node its own");
  EXPECT_EQ(h.last<wire::RoundStart>(ca).group_rank, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(cb).group_rank, 0);
}

TEST(Membership, ANodeWithAnotherProgramIsToldSo) {
  Harness h;
  const auto notice_to = [&](const char* node, const char* program, const char* role) {
    wire::Join join = Harness::node(node, 4, 4);
    join.program = program;
    join.role = role;
    return h.last<wire::Welcome>(h.join(join)).notice;
  };
  EXPECT_EQ(notice_to("a", "train.py", "default"), "");
  EXPECT_EQ(notice_to("b", "elsewhere/train.py", "default"), "");
  EXPECT_EQ(notice_to("c", "serve.py", "server"), "");
  EXPECT_THAT(
      notice_to("d", "train_ddp.py", "default"),
      testing::StartsWith("this node runs train_ddp.py, and the first one runs train.py; "));
}

TEST(Membership, AMemberKeepsItsRankOverRounds) {
  Harness h;
  const auto a = h.join(Harness::node("a", 3, 3, 3));
  const auto b = h.join(Harness::node("b", 3, 3, 3));
  const auto c = h.join(Harness::node("c", 3, 3, 3));
  h.disconnect(a);
  h.say(b, wire::Stopped{0, {}});
  h.say(c, wire::Stopped{0, {}});
  // A newcomer that sorts behind the others still gets the hole.
  const auto z = h.join(Harness::node("z", 3, 3, 3));
  EXPECT_EQ(h.last<wire::RoundStart>(z).round, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(z).group_rank, 0);
  EXPECT_EQ(h.last<wire::RoundStart>(b).group_rank, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(c).group_rank, 2);
}

TEST(Membership, ANewNodeStopsASmallerRoundWithoutACharge) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 0));
  h.pass(Duration{3'000});
  ASSERT_EQ(h.rounds.size(), 1u);
  const auto b = h.join(Harness::node("b", 1, 2, 0));
  h.say(a, wire::NodeCommitted{0, 7});
  EXPECT_EQ(h.last<wire::Stop>(a).reason, "node b joined");
  EXPECT_TRUE(h.last<wire::Stop>(a).keep_workers);
  EXPECT_EQ(h.count<wire::RoundStart>(b), 0u) << "the old round still runs";
  h.say(a, wire::Stopped{0, {}});
  const auto start = h.last<wire::RoundStart>(b);
  EXPECT_EQ(start.round, 1);
  EXPECT_EQ(start.restarts, 0);
  EXPECT_EQ(start.reason, "node b joined");
  EXPECT_EQ(start.members.size(), 2u);
}

TEST(Membership, WorkersThatFailWhileARoundStopsForANewNodeAreNotCharged) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 3, 0));
  const auto b = h.join(Harness::node("b", 2, 3, 0));
  h.pass(Duration{3'000});
  h.join(Harness::node("c", 2, 3, 0));
  h.say(a, wire::NodeCommitted{0, 7});
  h.say(b, wire::NodeCommitted{0, 7});
  h.fail(b, 0, 0, 1);
  h.say(a, wire::Stopped{0, {}});
  h.say(b, wire::Stopped{0, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 0);
}

TEST(Membership, ARoundIsNotStoppedForANewNodeOnceAPartHasSucceeded) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 3));
  const auto b = h.join(Harness::node("b", 2, 3));
  h.pass(Duration{3'000});
  h.say(a, wire::Succeeded{0});
  const auto c = h.join(Harness::node("c", 2, 3));
  EXPECT_EQ(h.count<wire::Stop>(b), 0u);
  EXPECT_THAT(h.last<wire::Waiting>(c).text, HasSubstr("spare"));
  h.say(b, wire::Succeeded{0});
  EXPECT_EQ(h.last<wire::Finish>(c).exit_code, 0);
}

TEST(Membership, ExtraNodesAreSparesAndTakeThePlaceOfALostOne) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 1));
  const auto b = h.join(Harness::node("b", 2, 2, 1));
  const auto c = h.join(Harness::node("c", 2, 2, 1));
  EXPECT_EQ(h.count<wire::RoundStart>(c), 0u);
  EXPECT_THAT(h.last<wire::Waiting>(c).text, HasSubstr("this node is a spare"));
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(c).group_rank, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(c).reason,
            "node b was lost: its connection closed; restart 1 of 1");
}

TEST(Membership, ALostNodeIsWaitedForAMomentAndNotTheWholeLastCall) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 5));
  const auto b = h.join(Harness::node("b", 1, 2, 5));
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}});
  h.pass(Duration{999});
  EXPECT_EQ(h.rounds.size(), 1u);
  h.pass(Duration{1});
  EXPECT_EQ(h.last<wire::RoundStart>(a).members.size(), 1u);
}

TEST(Membership, ANodeThatWasSilentForLongIsNotWaitedFor) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 3));
  const auto b = h.join(Harness::node("b", 1, 2, 3));
  h.pass(Duration{5'000}, {b});
  EXPECT_EQ(h.count<wire::Stop>(a), 1u);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(h.count<wire::RoundStart>(a), 2u);
}

// Its machine has acknowledged nothing for a second.
TEST(Membership, AMachineThatIsGoneIsNotWaitedFor) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 3));
  const auto b = h.join(Harness::node("b", 1, 2, 3));
  h.take(h.core.on_disconnect(h.now, b, Duration{1'000}));
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(h.count<wire::RoundStart>(a), 2u);
}

// After a power cut that all of them have had, they come one after the other.
TEST(Membership, NodesThatAreComingAreWaitedFor) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 3, 3));
  const auto b = h.join(Harness::node("b", 2, 3, 3));
  const auto c = h.join(Harness::node("c", 2, 3, 3));
  for (const auto each : {a, b, c}) h.disconnect(each);
  h.pass(Duration{20'000});
  const auto back = h.join(Harness::node("a2", 2, 3, 3));
  h.join(Harness::node("b2", 2, 3, 3));
  EXPECT_EQ(h.count<wire::RoundStart>(back), 0u);
  h.pass(Duration{200});
  h.join(Harness::node("c2", 2, 3, 3));
  EXPECT_EQ(h.last<wire::RoundStart>(back).members.size(), 3u);
}

TEST(Membership, ARestartBeginsAtOnceWhenEverybodyIsBack) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 3, 5));
  const auto b = h.join(Harness::node("b", 1, 3, 5));
  h.pass(Duration{3'000});
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 1u) << "b may come back";
  wire::Join again = Harness::node("b", 1, 3, 5);
  again.last_round = 0;
  const auto b2 = h.join(again);
  EXPECT_EQ(h.last<wire::RoundStart>(b2).round, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(b2).restarts, 1) << "the loss is charged, coming back is not";
}

TEST(Membership, LeavingWhileNodesAreMissingJustRemovesTheNode) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2));
  const auto b = h.join(Harness::node("b", 3, 3));
  EXPECT_EQ(h.count<wire::Refused>(b), 1u);
  h.say(a, wire::Leave{"done"});
  EXPECT_TRUE(h.closed.contains(a));
  EXPECT_TRUE(h.finished.empty());
  EXPECT_EQ(h.status_json().find("job_id"), std::string::npos) << "nobody is left of the job";
  // Another job of the same name may differ.
  EXPECT_EQ(h.count<wire::Welcome>(h.join(Harness::node("b", 3, 3))), 1u);
}

TEST(Membership, AMemberThatLeavesIsNotChargedAndNotWaitedFor) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 0));
  const auto b = h.join(Harness::node("b", 1, 2, 0));
  h.say(b, wire::Leave{"node b was stopped by SIGTERM"});
  EXPECT_EQ(h.last<wire::Stop>(a).reason, "node b was stopped by SIGTERM");
  h.say(a, wire::Stopped{0, {}});
  const auto start = h.last<wire::RoundStart>(a);
  EXPECT_EQ(start.round, 1);
  EXPECT_EQ(start.restarts, 0);
  EXPECT_EQ(start.reason, "node b was stopped by SIGTERM");
}

TEST(Membership, ALeaveExplainsSecondaryFailuresThatCameBeforeIt) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 0));
  const auto b = h.join(Harness::node("b", 1, 2, 0));
  h.fail(a, 0, 0, kExitCollectiveFailed, true);
  h.pass(Duration{3'000});
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 1u);
  h.say(b, wire::Leave{"node b was stopped by SIGTERM"});
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 0);
  EXPECT_EQ(h.last<wire::RoundStart>(a).reason, "node b was stopped by SIGTERM");
}

TEST(Membership, WithTooFewNodesAfterALeaveTheJobWaits) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 0));
  const auto b = h.join(Harness::node("b", 2, 2, 0));
  h.say(b, wire::Leave{""});
  h.say(a, wire::Stopped{0, {}});
  EXPECT_THAT(h.last<wire::Waiting>(a).text, HasSubstr("1 of 2 nodes is in (a); 1 missing"));
  const auto c = h.join(Harness::node("c", 2, 2, 0));
  EXPECT_EQ(h.last<wire::RoundStart>(c).reason, "node b left");
}

TEST(Membership, WhenEveryMemberLeavesTheJobIsForgotten) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2));
  const auto b = h.join(Harness::node("b", 2, 2));
  h.say(a, wire::Leave{""});
  h.say(b, wire::Leave{""});
  EXPECT_TRUE(h.finished.empty());
  EXPECT_EQ(h.status_json().find("job_id"), std::string::npos);
}

TEST(Membership, JobsDoNotMix) {
  Harness h;
  wire::Join other = Harness::node("b", 2, 2);
  other.job_id = "other";
  h.join(Harness::node("a", 2, 2));
  h.join(other);
  EXPECT_TRUE(h.rounds.empty());
}

TEST(Membership, RecordsOfFinishedJobsAreBounded) {
  Harness h;
  for (int i = 0; i < 1'100; ++i) {
    wire::Join join = Harness::node("a", 1, 1);
    join.job_id = "job" + std::to_string(i);
    h.say(h.join(join), wire::Succeeded{0});
  }
  EXPECT_EQ(h.finished.size(), 1'100u);
  const std::string status = h.status_json();
  EXPECT_EQ(status.find("\"job0\""), std::string::npos);
  EXPECT_NE(status.find("\"job1099\""), std::string::npos);
}

// One node that needs it decides for all, and rank 0's node says where: in Join for the first
// round, in Stopped for the next.
TEST(Membership, RankZerosStoreIsWhereItsNodeHasAPort) {
  CoordinatorHarness c;
  wire::Join first = c.node("n1", 2, 2, 3);
  first.store_port = 40'001;
  wire::Join second = c.node("n2", 2, 2, 3);
  second.store_port = 40'002;
  second.needs_own_store = true;
  const ConnectionId a = c.join(first);
  const ConnectionId b = c.join(second);
  EXPECT_EQ(c.last<wire::RoundStart>(a).store_port, 40'001);
  EXPECT_EQ(c.last<wire::RoundStart>(b).store_port, 40'001);
  c.fail(b, 0, 9);
  wire::Stopped stopped;
  stopped.round = 0;
  stopped.store_port = 40'003;
  c.say(a, stopped);
  stopped.store_port = 40'002;
  c.say(b, stopped);
  EXPECT_EQ(c.last<wire::RoundStart>(b).round, 1);
  EXPECT_EQ(c.last<wire::RoundStart>(b).store_port, 40'003);
}

TEST(Membership, WhereAllCanShareItTheStoreIsTheRendezvous) {
  CoordinatorHarness c;
  wire::Join join = c.node("n1", 1, 1);
  join.store_port = 40'001;
  EXPECT_EQ(c.last<wire::RoundStart>(c.join(join)).store_port, 0);
}

}  // namespace
}  // namespace ddp::rendezvous
