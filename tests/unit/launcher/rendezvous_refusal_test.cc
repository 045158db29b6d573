// Who is not let in, and what those who wait hear of it.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Harness = CoordinatorHarness;

struct RefusalCase {
  const char* name;
  void (*change)(wire::Join&);
  const char* text;
};
class Refusal : public ::testing::TestWithParam<RefusalCase> {};

TEST_P(Refusal, NamesBothSides) {
  Harness h;
  wire::Join first = Harness::node("a", 2, 4, 1);
  first.node_rank = 1;
  h.join(first);
  wire::Join second = Harness::node("b", 2, 4, 1);
  GetParam().change(second);
  const auto b = h.join(second);
  EXPECT_THAT(h.last<wire::Refused>(b).message, HasSubstr(GetParam().text));
  EXPECT_TRUE(h.closed.contains(b));
  EXPECT_EQ(h.count<wire::Welcome>(b), 0u);
  // Whoever was refused is not in.
  EXPECT_TRUE(h.rounds.empty());
  h.pass(Duration{5'000});
  EXPECT_TRUE(h.rounds.empty());
}

INSTANTIATE_TEST_SUITE_P(
    , Refusal,
    ::testing::Values(
        RefusalCase{"MinNodes", [](wire::Join& j) { j.rules.min_nodes = 1; },
                    "job job: --nnodes is 1:4 on b and 2:4 on a; start every node of the job with "
                    "the same value"},
        RefusalCase{"MaxRestarts", [](wire::Join& j) { j.rules.max_restarts = 3; },
                    "--max-restarts is 3 on b and 1 on a"},
        RefusalCase{"Timeout", [](wire::Join& j) { j.rules.scale_up_ms = 1; },
                    "--scale-up-timeout is 0.001 s on b and 60 s on a"},
        RefusalCase{"NodeRank", [](wire::Join& j) { j.node_rank = 1; },
                    "--node-rank 1 is taken by a"},
        RefusalCase{"NodeRankRange", [](wire::Join& j) { j.node_rank = 4; },
                    "node rank is 4, allowed are 0 to 3"},
        RefusalCase{"NoWorkers", [](wire::Join& j) { j.nproc = 0; }, "workers per node is 0"},
        RefusalCase{"NoNodeId", [](wire::Join& j) { j.node_id = ""; }, "the node id is empty"},
        RefusalCase{"LongHostName", [](wire::Join& j) { j.host = std::string(5'000, 'x'); },
                    "the host name has 5000 bytes; the limit is 4096"},
        RefusalCase{"LongRelease", [](wire::Join& j) { j.release = std::string(5'000, 'x'); },
                    "the release has 5000 bytes; the limit is 4096"},
        RefusalCase{"NegativeTime", [](wire::Join& j) { j.rules.join_timeout_ms = -1; },
                    "--join-timeout in ms is -1"}),
    [](const auto& suite) { return suite.param.name; });

TEST(WhoIsNotIn, ThoseWhoWaitHearWhoWasRefused) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2));
  h.join(Harness::node("b", 3, 3));
  h.pass(Duration{5'000});
  EXPECT_EQ(h.last<wire::Waiting>(a).text,
            "1 of 2 nodes is in (a); 1 missing, 55 s left; b was refused: --nnodes is 3 on b and 2 "
            "on a; start every node of the job with the same value");
  h.pass(Duration{55'000});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_THAT(h.finished[0].summary, HasSubstr("; b was refused: --nnodes is 3 on b and 2 on a"));
}

// What was refused before a round has nothing to do with a loss after it.
TEST(WhoIsNotIn, ARefusalIsOverOnceARoundBegins) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 1));
  h.join(Harness::node("c", 3, 3));
  EXPECT_THAT(h.last<wire::Waiting>(a).text, HasSubstr("c was refused"));
  const auto b = h.join(Harness::node("b", 2, 2, 1));
  h.join(Harness::node("d", 3, 3));
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_THAT(h.last<wire::Waiting>(a).text,
              HasSubstr("1 missing (lost: b; start ddp-run there again)"));
  EXPECT_THAT(h.last<wire::Waiting>(a).text, Not(HasSubstr("refused")));
}

TEST(WhoIsNotIn, WhoComesWithTheRightRulesIsNoLongerRefused) {
  Harness h;
  const auto a = h.join(Harness::node("a", 3, 3));
  h.join(Harness::node("b", 2, 2));
  h.join(Harness::node("b", 3, 3));
  EXPECT_EQ(h.last<wire::Waiting>(a).text, "2 of 3 nodes are in (a, b); 1 missing, 60 s left");
}

TEST(WhoIsNotIn, NodesOfTwoNamesForAJobHearOfEachOther) {
  Harness h;
  wire::Join other = Harness::node("b", 2, 2);
  other.job_id = "jbo";
  const auto a = h.join(Harness::node("a", 2, 2));
  const auto b = h.join(other);
  h.pass(Duration{5'000});
  EXPECT_EQ(h.last<wire::Waiting>(a).text,
            "1 of 2 nodes is in (a); 1 missing, 55 s left; job jbo waits for nodes here, too, and "
            "this is job job: nodes of one job need the same --rdzv-id");
  EXPECT_THAT(h.last<wire::Waiting>(b).text, HasSubstr("; job job waits for nodes here, too"));
  other = Harness::node("c", 2, 2);
  other.job_id = "jbo";
  h.join(other);
  h.pass(Duration{5'000});
  EXPECT_EQ(h.last<wire::Waiting>(a).text, "1 of 2 nodes is in (a); 1 missing, 50 s left");
}

}  // namespace
}  // namespace ddp::rendezvous
