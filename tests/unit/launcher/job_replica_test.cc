// Which ddp-run coordinates, and how others come to vote.
#include "launcher/replicas/job_replica.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "launcher/replicas/replica_message.h"
#include "tests/unit/launcher/job_replica_office.h"

namespace ddp::replicas {
namespace {

TEST(Coordinators, ActWhenAMajorityHasAnswered) {
  Office office;
  ASSERT_TRUE(office.coordinator().is_settled());
  bool stored = false;
  office.coordinator().store(record_of(1), [&stored] { stored = true; });
  office.beat();
  EXPECT_FALSE(stored);
  office.deliver();
  EXPECT_TRUE(stored);
}

// Else the next loss within a second would leave no majority.
TEST(Coordinators, ReplaceAVoterThatHasEndedAtOnce) {
  Office office(4);
  std::set<MemberId> voters = voters_of(office.coordinator());
  ASSERT_EQ(voters.size(), 3u);
  const MemberId lost = *voters.rbegin();
  office.end(lost);
  for (int i = 0; i < 9; ++i) office.pass(Duration(20));
  EXPECT_FALSE(office.coordinator().is_settled());
  for (int i = 0; i < 25; ++i) office.pass(Duration(20));
  EXPECT_TRUE(office.coordinator().is_settled());
  voters = voters_of(office.coordinator());
  EXPECT_EQ(voters.size(), 3u);
  EXPECT_FALSE(voters.contains(lost));
}

// The process lives, and is heard over another connection.
TEST(Coordinators, AResetCostsNoVote) {
  Office office(4);
  const std::set<MemberId> voters = voters_of(office.coordinator());
  ASSERT_EQ(voters.size(), 3u);
  office.coordinator().on_closed(office.now(),
                                 {.host = "n", .port = static_cast<int>(*voters.rbegin())});
  for (int i = 0; i < 100; ++i) {
    office.pass(Duration(20));
    ASSERT_EQ(voters_of(office.coordinator()), voters) << i;
  }
}

// Its agent is there, but its ddp-run takes no message.
TEST(Coordinators, AMemberThatTakesNoVoteDoesNotKeepOthersFromTheirs) {
  Office office(5);
  const std::set<MemberId> voters = voters_of(office.coordinator());
  ASSERT_EQ(voters, (std::set<MemberId>{1, 2, 3}));
  office.silence(4);
  office.end(3);
  for (int i = 0; i < 400; ++i) office.pass(Duration(20));
  EXPECT_EQ(voters_of(office.coordinator()), (std::set<MemberId>{1, 2, 5}));
}

// Another one may lead by then.
TEST(Coordinators, AskAgainIfTheAnswerComesLate) {
  Office office;
  ASSERT_TRUE(office.coordinator().is_settled());
  bool stored = false;
  office.coordinator().store(record_of(1), [&stored] { stored = true; });
  office.beat();
  office.let_others_answer();
  office.stand_still(Duration(670));
  ASSERT_FALSE(office.is_silent());
  office.receive_one();
  EXPECT_FALSE(stored);
  office.beat();
  office.deliver();
  EXPECT_TRUE(stored);
}

bool is_led_by_another(Office& office) { return office.of(2).leads() || office.of(3).leads(); }

// The first of three is lost. Passes on messages until another one coordinates, but not more than
// `limit`. Returns how many it has passed on.
int let_another_take_over(Office& office, int limit) {
  office.end(1);
  for (int passed_on = 0; passed_on < limit; ++passed_on) {
    if (is_led_by_another(office)) return passed_on;
    while (office.is_silent()) office.turn(Duration(20));
    office.receive_one();
  }
  return limit;
}

// Between the question and the last answer this process stood still; another one may lead by then.
TEST(Coordinators, TakeTheOfficeOnlyIfTheAnswerIsRecent) {
  Office whole;
  const int last = let_another_take_over(whole, 1'000);
  ASSERT_LT(last, 1'000);
  Office office;
  ASSERT_EQ(let_another_take_over(office, last - 1), last - 1);
  ASSERT_FALSE(is_led_by_another(office));
  office.stand_still(Duration(670));
  office.receive_one();
  EXPECT_FALSE(is_led_by_another(office));
  for (int i = 0; i < 100 && !is_led_by_another(office); ++i) office.pass(Duration(20));
  EXPECT_TRUE(is_led_by_another(office));
}

// So that its successor does not wait for its node.
TEST(Coordinators, KnowThatTheirPredecessorHasEnded) {
  Office office;
  EXPECT_FALSE(office.coordinator().silence_of(2)) << "nobody came before it";
  const TimePoint ended = office.now();
  let_another_take_over(office, 1'000);
  const JobReplica& next = office.of(office.of(2).leads() ? 2 : 3);
  const auto silence = next.silence_of(1);
  ASSERT_TRUE(silence);
  EXPECT_LE(silence->since, ended);
  EXPECT_EQ(silence->lost_from, ended + Duration(150));
  EXPECT_FALSE(next.silence_of(2));
  EXPECT_FALSE(next.silence_of(3));
}

// A machine that is gone closes nothing.
TEST(Coordinators, KnowHowLongTheirPredecessorHasBeenSilent) {
  Office office;
  const TimePoint heard = office.now();
  office.vanish(1);
  while (!is_led_by_another(office)) office.pass(Duration(20));
  const JobReplica& next = office.of(office.of(2).leads() ? 2 : 3);
  const auto silence = next.silence_of(1);
  ASSERT_TRUE(silence);
  EXPECT_LE(silence->since, heard);
  EXPECT_GT(silence->since, heard - Duration(150));
  EXPECT_FALSE(silence->lost_from);
}

// If the coordinator were lost before, nobody could tell that ddp-run of the next one.
TEST(Coordinators, TellANewDdpRunWhenTheGroupKnowsIt) {
  Office office;
  office.welcome(4);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(office.is_being_told(4));
    office.let_others_answer();
    office.turn(Duration(20));
  }
  EXPECT_FALSE(office.is_being_told(4));
  office.deliver();
  EXPECT_EQ(office.of(4).coordinator(), (HostPort{.host = "n", .port = 1}));
}

TEST(Coordinators, TellNoHistoryOfAnyLength) {
  Office office;
  office.coordinator().tell_history("short");
  office.coordinator().tell_history(std::string((4u << 20) + 1, 'x'));
  office.deliver();
  EXPECT_EQ(office.of(2).told_history()->text, "short");
}

TEST(Coordinators, TellTheirSuccessorsWhatTheJobHasBeenThrough) {
  Office office;
  office.coordinator().tell_history("first");
  office.stand_still(Duration(100));
  office.coordinator().tell_history("second");
  office.deliver();
  for (const MemberId member : {1u, 2u, 3u}) {
    const auto& told = office.of(member).told_history();
    ASSERT_TRUE(told) << member;
    EXPECT_EQ(told->text, "second");
  }
}

// It was stopped, and does not know yet that another one leads.
TEST(Coordinators, AnEarlierOneTellsNothing) {
  Office office;
  office.coordinator().tell_history("early");
  ReplicaMessage late = office.last_sent();
  office.coordinator().hand_over();
  for (int i = 0; i < 100; ++i) office.pass(Duration(20));
  ASSERT_FALSE(office.coordinator().leads());
  JobReplica& next = office.of(office.of(2).leads() ? 2 : 3);
  ASSERT_TRUE(next.leads());
  next.tell_history("of the next one");
  office.deliver();
  late.number += 1'000;
  office.of(1).tell_history("of no one");
  for (const MemberId member : {2u, 3u}) office.of(member).receive(office.now(), late);
  EXPECT_TRUE(office.is_silent());
  for (const MemberId member : {1u, 2u, 3u})
    EXPECT_EQ(office.of(member).told_history()->text, "of the next one") << member;
}

// Those that vote for the next one have answered this one just before. libraft 0.22 waits for the
// answer of the next one before it gives the order.
TEST(Coordinators, OneThatHandsOverBeginsNothing) {
  Office office;
  bool confirmed = false;
  office.coordinator().confirm([&] { confirmed = true; });
  office.coordinator().hand_over();
  for (int i = 0; i < 20 && !is_led_by_another(office); ++i) {
    office.turn(Duration(20));
    office.let_others_answer();
    if (!is_led_by_another(office)) office.deliver();
  }
  ASSERT_TRUE(is_led_by_another(office));
  office.deliver();
  EXPECT_FALSE(confirmed);
  EXPECT_FALSE(office.coordinator().leads());
}

TEST(MemberIds, DifferByNode) {
  EXPECT_NE(member_id("0011223344556677"), member_id("0011223344556678"));
  EXPECT_NE(member_id(""), 0u);
}

}  // namespace
}  // namespace ddp::replicas
