// What happens if two groups meet, and who belongs to which.
#include <set>

#include <gtest/gtest.h>

#include "launcher/replicas/replica_message.h"
#include "tests/unit/launcher/job_replica_office.h"

namespace ddp::replicas {
namespace {

// As if its host had been started again while the coordinator is lost. An agent that joins there
// may have been in no round, although its ddp-run knows of some.
TEST(Founders, LearnOfTheGroupThatHasBegunTheJob) {
  Office office;
  office.coordinator().store(record_of(1), [] {});
  for (int i = 0; i < 10; ++i) office.pass(Duration(20));
  office.end(1);
  office.found(4);
  EXPECT_TRUE(office.of(4).leads());
  office.of(4).on_joined(office.now(), 2, {.host = "n", .port = 2}, {});
  for (int i = 0; i < 10; ++i) office.pass(Duration(20));
  EXPECT_FALSE(office.of(4).leads());
}

// Nobody can lead the earlier group any more.
TEST(Founders, BeginAnewAfterAGroupWithoutALeader) {
  Office office;
  office.coordinator().store(record_of(1), [] {});
  for (int i = 0; i < 10; ++i) office.pass(Duration(20));
  office.end(1);
  office.end(3);
  for (int i = 0; i < 550; ++i) office.pass(Duration(20));
  office.found(4);
  office.of(4).on_joined(office.now(), 2, {.host = "n", .port = 2}, {});
  for (int i = 0; i < 10; ++i) office.pass(Duration(20));
  EXPECT_TRUE(office.of(4).leads());
}

// A second founder, and the coordinator of the first group hears of it.
void let_a_rival_come(Office& office, MemberId rival, MemberId coordinator) {
  office.found(rival);
  office.of(rival).on_joined(office.now(), coordinator,
                             {.host = "n", .port = static_cast<int>(coordinator)}, {});
}

TEST(Rivals, TheOneWithTheSmallerIdStays) {
  Office office(3, 1);
  let_a_rival_come(office, 4, 1);
  for (int i = 0; i < 10; ++i) office.pass(Duration(20));
  EXPECT_TRUE(office.coordinator().leads());
  EXPECT_FALSE(office.of(4).leads());
  EXPECT_EQ(office.told_of(4), 1u);
}

TEST(Rivals, TheOneWithTheLargerIdGivesWayWithAllItsMembers) {
  Office office(3, 9);
  let_a_rival_come(office, 4, 9);
  for (int i = 0; i < 200; ++i) {
    office.pass(Duration(20));
    ASSERT_TRUE(office.of(4).leads());
  }
  EXPECT_FALSE(office.coordinator().leads());
  EXPECT_EQ(office.told_of(9), 4u);
  for (const MemberId id : {2, 3}) {  // Their agents are sent on.
    office.of(4).on_joined(office.now(), id, {.host = "n", .port = static_cast<int>(id)},
                           {.was_joined = true});
  }
  for (int i = 0; i < 200; ++i) office.pass(Duration(20));
  EXPECT_EQ(voters_of(office.of(4)), (std::set<MemberId>{2, 3, 4}));
}

// The number of its round is on its way to the others when it hears of the other group.
TEST(Rivals, AGroupThatBeginsARoundStays) {
  Office office(3, 9);
  bool stored = false;
  office.coordinator().store(record_of(1), [&stored] { stored = true; });
  let_a_rival_come(office, 4, 9);
  for (int i = 0; i < 50; ++i) office.pass(Duration(20));
  EXPECT_TRUE(stored);
  EXPECT_TRUE(office.coordinator().leads());
}

// The rounds of a group that has given way never begin.
TEST(Rivals, AGroupThatHasGivenWayStoresNothing) {
  Office office(3, 9);
  let_a_rival_come(office, 4, 9);
  while (!office.coordinator().has_successor() || office.is_silent()) office.turn(Duration(20));
  while (!office.is_being_told(9)) office.receive_one();
  while (office.is_being_told(9)) office.receive_one();
  bool stored = false;
  office.coordinator().store(record_of(1), [&stored] { stored = true; });
  for (int i = 0; i < 50; ++i) office.pass(Duration(20));
  EXPECT_FALSE(stored);
  EXPECT_FALSE(office.coordinator().leads());
}

// Two of three have begun round 0 (with 1). Then 4 begins a second job, and the agent of 2 goes
// there.
void let_an_agent_go_to_a_second_job(Office& office) {
  office.coordinator().store(record_of(1), [] {});
  for (int i = 0; i < 10; ++i) office.pass(Duration(20));
  office.vanish(1);
  office.found(4);
  office.of(4).store(record_of(1), [] {});
  for (int i = 0; i < 10; ++i) office.turn(Duration(20));
  office.of(4).on_joined(office.now(), 2, {.host = "n", .port = 2},
                         {.was_joined = true, .last_round = 0});
  for (int i = 0; i < 200; ++i) office.pass(Duration(20));
}

TEST(Members, GoWhereTheirAgentsAre) {
  Office office;
  let_an_agent_go_to_a_second_job(office);
  EXPECT_TRUE(office.of(4).leads());
  EXPECT_FALSE(office.of(2).leads() || office.of(3).leads());
  EXPECT_EQ(office.told_of(2), 4u);
}

// There they have forgotten what they had voted.
TEST(Members, DoNotGoBack) {
  Office office;
  let_an_agent_go_to_a_second_job(office);
  ASSERT_EQ(office.told_of(2), 4u);
  office.of(2).receive(office.now(), {.job_id = "job",
                                      .group = 1,
                                      .from = 3,
                                      .number = 1'000'000,
                                      .at = {.host = "n", .port = 3},
                                      .announcement = Announcement{
                                          .term = 99, .next_round = 7, .has_your_agent = true}});
  EXPECT_EQ(office.told_of(2), 4u);
}

// Of three, the founder is started again (4), and the agent of one whose ddp-run is stopped joins
// (2). That one may know of a group that has begun the job.
void leave_one_that_does_not_answer(Office& office) {
  office.vanish(1);
  office.vanish(3);
  office.silence(2);
  office.found(4);
  office.of(4).on_joined(office.now(), 2, {.host = "n", .port = 2}, {.was_joined = true});
}

TEST(Founders, WaitForTheAnswersOfThoseThatWereJoinedToAnotherCoordinator) {
  Office office;
  leave_one_that_does_not_answer(office);
  bool stored = false;
  office.of(4).store(record_of(1), [&stored] { stored = true; });
  for (int i = 0; i < 200; ++i) office.pass(Duration(20));
  EXPECT_FALSE(stored);
  office.silence(0);
  for (int i = 0; i < 50; ++i) office.pass(Duration(20));
  EXPECT_TRUE(stored);
}

TEST(Founders, DoNotWaitForAnswersForEver) {
  Office office;
  leave_one_that_does_not_answer(office);
  bool stored = false;
  office.of(4).store(record_of(1), [&stored] { stored = true; });
  for (int i = 0; i < 600; ++i) office.pass(Duration(20));
  EXPECT_TRUE(stored);
}

}  // namespace
}  // namespace ddp::replicas
