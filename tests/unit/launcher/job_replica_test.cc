// Which ddp-run coordinates, and how others come to vote: several JobReplicas, without a network.
#include "launcher/replicas/job_replica.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "launcher/replicas/raft_member.h"
#include "launcher/replicas/replica_message.h"

namespace ddp::replicas {
namespace {

// A coordinator and two others, whose messages the test delivers.
class Office {
 public:
  explicit Office(MemberId members = 3, MemberId founder = 1) : founder_(founder) {
    make(founder);
    coordinator().found(now_);
    for (MemberId id = 2; id <= members; ++id) welcome(id);
    for (int i = 0; i < 50; ++i) pass(Duration(20));
  }
  JobReplica& coordinator() { return *replicas_[founder_]; }
  JobReplica& of(MemberId id) { return *replicas_.at(id); }
  TimePoint now() const { return now_; }
  void found(MemberId id) {
    make(id);
    replicas_[id]->found(now_);
  }
  void deliver() {
    while (!on_its_way_.empty()) {
      const auto [to, message] = on_its_way_.front();
      on_its_way_.pop_front();
      const auto receiver = replicas_.find(static_cast<MemberId>(to));
      if (receiver != replicas_.end() && receiver->first != silent_)
        receiver->second->receive(now_, message);
    }
  }
  void stand_still(Duration time) { now_ += time; }
  // The coordinator sends what libraft has kept back for the next heartbeat.
  void beat() {
    now_ += Duration(120);
    coordinator().tick(now_);
  }
  // One turn of everybody.
  void pass(Duration time) {
    turn(time);
    deliver();
  }
  // The same, but what they send stays on its way.
  void turn(Duration time) {
    now_ += time;
    for (const auto& [id, replica] : replicas_) replica->tick(now_);
  }
  // Nothing reaches the member any more.
  void silence(MemberId member) { silent_ = member; }
  // What others have received and answered, but the coordinator has not.
  void let_others_answer() {
    std::deque<std::pair<int, ReplicaMessage>> answers;
    while (!on_its_way_.empty()) {
      const auto [to, message] = on_its_way_.front();
      on_its_way_.pop_front();
      if (static_cast<MemberId>(to) == founder_) {
        answers.emplace_back(to, message);
      } else {
        replicas_.at(static_cast<MemberId>(to))->receive(now_, message);
      }
    }
    on_its_way_ = answers;
  }
  // Its machine is gone.
  void vanish(MemberId member) { replicas_.erase(member); }
  // The process ends, and the kernel closes its connections.
  void end(MemberId member) {
    vanish(member);
    for (const auto& [id, replica] : replicas_)
      replica->on_closed(now_, {.host = "n", .port = static_cast<int>(member)});
  }
  bool is_silent() const { return on_its_way_.empty(); }
  // What was sent last; it stays on its way.
  ReplicaMessage last_sent() const { return on_its_way_.back().second; }
  void receive_one() {
    const auto [to, message] = on_its_way_.front();
    on_its_way_.pop_front();
    const auto receiver = replicas_.find(static_cast<MemberId>(to));
    if (receiver != replicas_.end()) receiver->second->receive(now_, message);
  }
  // Where the member was last told that the coordinator is: the id of that one. 0: nowhere.
  MemberId told_of(MemberId id) { return static_cast<MemberId>(moved_[id]); }
  bool is_being_told(MemberId member) const {
    return std::any_of(on_its_way_.begin(), on_its_way_.end(), [member](const auto& sent) {
      return static_cast<MemberId>(sent.first) == member && sent.second.announcement;
    });
  }
  // The agent of a new ddp-run joins.
  void welcome(MemberId id) {
    make(id);
    replicas_[id]->join(now_);
    coordinator().on_joined(now_, id, {.host = "n", .port = static_cast<int>(id)}, {});
  }

 private:
  void make(MemberId id) {
    replicas_[id] = std::make_unique<JobReplica>(
        id, HostPort{.host = "n", .port = static_cast<int>(id)},
        ReplicaOptions{.job_id = "job", .raft = {.seed = static_cast<std::uint32_t>(id)}},
        JobReplica::Events{.send =
                               [this](const HostPort& to, const ReplicaMessage& message) {
                                 on_its_way_.emplace_back(to.port, message);
                               },
                           .won = [](const rendezvous::JobRecord&) {},
                           .lost = [] {},
                           .moved = [this, id](const HostPort& at) { moved_[id] = at.port; }});
  }

  const MemberId founder_;
  TimePoint now_{Duration(1'000'000)};
  std::map<MemberId, std::unique_ptr<JobReplica>> replicas_;
  std::deque<std::pair<int, ReplicaMessage>> on_its_way_;
  std::map<MemberId, int> moved_;
  MemberId silent_ = 0;
};

rendezvous::JobRecord record_of(Round next_round) {
  rendezvous::JobRecord record;
  record.job_id = "job";
  record.next_round = next_round;
  return record;
}

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

std::set<MemberId> voters_of(const JobReplica& replica) {
  std::set<MemberId> voters;
  for (const RaftMember::Server& server : replica.servers()) {
    if (server.votes) voters.insert(server.id);
  }
  return voters;
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
  const auto another_leads = [&] { return office.of(2).leads() || office.of(3).leads(); };
  for (int i = 0; i < 20 && !another_leads(); ++i) {
    office.turn(Duration(20));
    office.let_others_answer();
    if (!another_leads()) office.deliver();
  }
  ASSERT_TRUE(another_leads());
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
