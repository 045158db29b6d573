// Whether, when and with which nodes another round follows a failed one; one rule per test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Harness = CoordinatorHarness;

// One node whose workers report progress.
struct Reporting : Harness {
  explicit Reporting(int max_restarts, bool restart_on_start_failure = false,
                     int max_no_progress = 0) {
    wire::Join join_message = node("a", 1, 1, max_restarts);
    join_message.rules.restart_on_start_failure = restart_on_start_failure;
    join_message.rules.max_no_progress = max_no_progress;
    a = join(join_message);
  }
  void step(std::int64_t step) { say(a, wire::Heartbeat{step}); }
  void fail_round() {
    wire::Failure failure;
    failure.rank = 0;
    failure.exit_code = 1;
    say(a, wire::WorkerFailed{rounds.back(), failure, -1, true});
    say(a, wire::Stopped{rounds.back(), {}, 0, -1, true, {}});
  }
  // How long the next round lets itself be waited for.
  std::int64_t delay() {
    const std::size_t before = rounds.size();
    const TimePoint since = now;
    while (rounds.size() == before && finished.empty() && now - since < Duration{60'000}) {
      now = std::max(now + Duration{1}, std::min(*core.next_deadline(), now + Duration{1'000}));
      say(a, wire::Heartbeat{});
      take(core.on_tick(now));
    }
    return std::chrono::duration_cast<Duration>(now - since).count();
  }
  ConnectionId a = 0;
};

TEST(Restart, AFailureBeforeTheFirstStepEndsTheJobWhereStepsAreReported) {
  Reporting h(5);
  h.fail_round();
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 1);
  EXPECT_THAT(h.finished[0].summary, HasSubstr("no worker had made a step"));
  EXPECT_THAT(h.finished[0].summary, HasSubstr("--restart-on-start-failure"));
}

TEST(Restart, UnlessItIsToBeRestartedAnyway) {
  Reporting h(5, true);
  h.fail_round();
  EXPECT_EQ(h.rounds.size(), 2u);
}

TEST(Restart, AfterTheFirstStepOfTheJobEveryFailureIsRestarted) {
  Reporting h(5);
  h.step(0);
  h.fail_round();
  EXPECT_EQ(h.rounds.size(), 2u);
  h.fail_round();
  h.delay();
  EXPECT_EQ(h.rounds.size(), 3u) << "the job has made a step, if not this round";
}

TEST(Restart, ALostNodeIsNoFailureOfTheProgram) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 1));
  const auto b = h.join(Harness::node("b", 2, 2, 1));
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}, 1, -1, true, {}});
  EXPECT_TRUE(h.finished.empty());
}

TEST(Restart, TheFirstIsAtOnceAndEveryFurtherOneWaitsTwiceAsLong) {
  Reporting h(20);
  h.step(7);
  h.fail_round();
  EXPECT_EQ(h.rounds.size(), 2u) << "the first is at once";
  for (const std::int64_t expected :
       {100, 200, 400, 800, 1'600, 3'200, 6'400, 12'800, 25'600, 30'000, 30'000}) {
    h.fail_round();
    EXPECT_EQ(h.delay(), expected);
  }
  h.step(8);
  h.fail_round();
  EXPECT_EQ(h.rounds.size(), 14u) << "a new step makes all good";
}

TEST(Restart, AStepThatWasMadeBeforeIsNoProgress) {
  Reporting h(20);
  h.step(7);
  h.fail_round();
  h.step(7);
  h.fail_round();
  EXPECT_EQ(h.delay(), 100);
}

TEST(Restart, WorkersThatReportNothingAreJudgedByTime) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 9));
  const auto fail = [&] {
    const Round round = h.rounds.back();
    h.fail(a, round, 0, 1);
    h.say(a, wire::Stopped{round, {}});
  };
  fail();
  EXPECT_EQ(h.rounds.size(), 2u);
  fail();
  EXPECT_EQ(h.rounds.size(), 2u) << "it has failed too soon";
  h.pass(Duration{500});
  EXPECT_EQ(h.rounds.size(), 3u);
  h.pass(Duration{10'000});
  fail();
  EXPECT_EQ(h.rounds.size(), 4u);
}

TEST(Restart, RestartsWithoutANewStepEndTheJob) {
  Reporting h(20, false, 2);
  h.step(41);
  h.fail_round();
  h.fail_round();
  h.delay();
  EXPECT_EQ(h.rounds.size(), 3u) << "one restart without a new step";
  h.fail_round();
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 1);
  EXPECT_THAT(h.finished[0].summary,
              HasSubstr("2 restarts in a row brought no step beyond 41 (--max-no-progress)"));
}

TEST(Restart, ANewStepStartsThatCountAnew) {
  Reporting h(20, false, 2);
  for (std::int64_t step = 0; step < 6; ++step) {
    if (step % 2 == 0) h.step(step);
    h.fail_round();
    if (step % 2 != 0) h.delay();
  }
  EXPECT_TRUE(h.finished.empty());
}

TEST(Restart, WorkersThatCannotTellAreNotCounted) {
  Harness h;
  wire::Join join = Harness::node("a", 1, 1, 9);
  join.rules.max_no_progress = 1;
  const auto a = h.join(join);
  for (int i = 0; i < 4; ++i) {
    h.fail(a, i, 0, 1);
    h.say(a, wire::Stopped{i, {}});
    h.pass(Duration{1'000});
  }
  EXPECT_TRUE(h.finished.empty());
}

// Spot nodes may be lost one after the other, whatever the program does.
TEST(Restart, LostNodesAreNotCounted) {
  Harness h;
  const auto member = [](const std::string& name) {
    wire::Join join = Harness::node(name, 3, 3, 9);
    join.rules.max_no_progress = 1;
    return join;
  };
  const auto a = h.join(member("a"));
  const auto b = h.join(member("b"));
  auto c = h.join(member("c"));
  h.say(a, wire::Heartbeat{5});
  for (Round round = 0; round < 3; ++round) {
    h.disconnect(c);
    for (const auto node : {a, b}) h.say(node, wire::Stopped{round, {}, 1, -1, true, {}});
    ASSERT_TRUE(h.finished.empty()) << h.finished[0].summary;
    c = h.join(member("c"));
    h.pass(Duration{1'000});
    ASSERT_EQ(h.rounds.back(), round + 1);
  }
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 3) << "they are charged";
  h.fail(b, 3, 0, 1);
  for (const auto node : {a, b, c}) h.say(node, wire::Stopped{3, {}, 1, -1, true, {}});
  ASSERT_EQ(h.finished.size(), 1u) << "a failure of the program is counted";
  EXPECT_THAT(h.finished[0].summary, HasSubstr("1 restart in a row brought no step beyond 5"));
}

TEST(Restart, WhatDoesNotHelpIsFollowedByAFreshStart) {
  Reporting h(20);
  h.step(7);
  h.fail_round();
  EXPECT_TRUE(h.last<wire::Stop>(h.a).keep_workers);
  h.fail_round();
  EXPECT_TRUE(h.last<wire::Stop>(h.a).keep_workers) << "two failures at once are no sign yet";
  h.delay();
  h.fail_round();
  EXPECT_FALSE(h.last<wire::Stop>(h.a).keep_workers);
  h.delay();
  h.step(3);
  h.fail_round();
  EXPECT_TRUE(h.last<wire::Stop>(h.a).keep_workers) << "it has come to a step";
}

// An agent repeats what it knows of its last round until it has begun the next one.
TEST(Restart, AHeartbeatOfTheLastRoundIsNoStepOfThisOne) {
  Reporting h(20);
  const auto say_late = [&] {
    h.say(h.a, wire::Heartbeat{.step = 7, .loss = 0.5, .waits = {"long ago"}, .round = 0});
  };
  say_late();
  h.fail_round();
  say_late();
  EXPECT_THAT(h.status_json(), Not(HasSubstr("\"step\": 7")));
  EXPECT_THAT(h.status_json(), Not(HasSubstr("long ago")));
  h.fail_round();
  h.delay();
  say_late();
  h.fail_round();
  EXPECT_FALSE(h.last<wire::Stop>(h.a).keep_workers) << "two rounds without a step";
  const auto rounds = h.core.history(h.now).at(0).at("rounds");
  EXPECT_TRUE(rounds.at(0).contains("first_step_ms"));
  for (const std::size_t i : {1, 2}) EXPECT_FALSE(rounds.at(i).contains("first_step_ms")) << i;
  h.delay();
  h.say(h.a, wire::Heartbeat{.step = 3, .round = h.rounds.back()});
  h.fail_round();
  EXPECT_TRUE(h.last<wire::Stop>(h.a).keep_workers);
}

// With commits further apart than losses, no step is new.
TEST(Restart, StepsThatAreMadeAgainKeepTheWorkers) {
  Reporting h(20);
  h.step(7);
  h.fail_round();
  for (int i = 0; i < 5; ++i) {
    h.delay();
    h.step(3);
    h.fail_round();
    EXPECT_TRUE(h.last<wire::Stop>(h.a).keep_workers);
    h.delay();
    h.fail_round();
    EXPECT_TRUE(h.last<wire::Stop>(h.a).keep_workers) << "it has made steps before";
  }
  h.delay();
  h.fail_round();
  EXPECT_FALSE(h.last<wire::Stop>(h.a).keep_workers);
}

// Nobody waits for what they were writing. A node that leaves finishes it.
TEST(Restart, TheNextRoundTellsWhichRanksOfTheLastOneAreLost) {
  Harness h;
  std::vector<ConnectionId> nodes;
  for (const char* name : {"a", "b", "c", "d"}) {
    wire::Join join = Harness::node(name, 2, 4, 1);
    join.nproc = 2;
    nodes.push_back(h.join(join));
  }
  EXPECT_EQ(h.last<wire::RoundStart>(nodes[0]).lost_ranks, std::vector<Rank>());
  h.say(nodes[1], wire::Leave{"by the user"});
  h.disconnect(nodes[2]);
  for (const ConnectionId node : {nodes[0], nodes[1], nodes[3]}) h.say(node, wire::Stopped{0, {}});
  h.pass(Duration{3'000}, {nodes[1], nodes[2]});
  const auto start = h.last<wire::RoundStart>(nodes[3]);
  EXPECT_EQ(start.round, 1);
  EXPECT_EQ(start.lost_round, 0);
  EXPECT_EQ(start.lost_ranks, (std::vector<Rank>{4, 5}));
}

// ---- the job's record ----

TEST(Record, IsKeptBeforeWhatDependsOnIt) {
  RendezvousCore core;
  std::vector<std::string> order;
  std::optional<JobRecord> record;
  const auto see = [&](const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* persist = std::get_if<Persist>(&action)) {
        record = persist->record;
        order.push_back("persist");
      } else if (std::holds_alternative<RoundBegins>(action)) {
        order.push_back("begins");
      } else if (const auto* send = std::get_if<SendTo>(&action)) {
        if (std::holds_alternative<wire::RoundStart>(send->message)) order.push_back("start");
        if (std::holds_alternative<wire::Finish>(send->message)) order.push_back("finish");
      }
    }
  };
  const TimePoint now{Duration{1'000}};
  see(core.on_message(now, 1, Harness::node("a", 1, 1, 2), "10.0.0.1"));
  EXPECT_THAT(order, ::testing::ElementsAre("persist", "begins", "start"));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->job_id, "job");
  EXPECT_EQ(record->next_round, 1);
  EXPECT_FALSE(record->finished);
  order.clear();
  see(core.on_message(now, 1, wire::Succeeded{0}, "10.0.0.1"));
  EXPECT_THAT(order, ::testing::ElementsAre("persist", "finish"));
  EXPECT_TRUE(record->finished);
  EXPECT_EQ(record->result.exit_code, 0);
}

TEST(Record, TheNextCoordinatorGoesOnWithItsNumbers) {
  Harness h;
  h.restore(Harness::record(8, 2, 40));
  wire::Join late = Harness::node("a", 1, 1, 5);
  late.last_round = 3;
  late.restarts = 1;
  const auto a = h.join(late);
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 8);
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 2) << "moving costs nothing";
  // Steps were made before.
  wire::Failure failure;
  failure.exit_code = 1;
  h.say(a, wire::WorkerFailed{8, failure, -1, true});
  h.say(a, wire::Stopped{8, {}, 0, -1, true, {}});
  EXPECT_TRUE(h.finished.empty());
}

// A node may be waited for as long as --join-timeout, and the coordinator be lost meanwhile.
TEST(Record, HasTheRestartThatWaitsForNodes) {
  Harness h;
  const auto member = [](const std::string& name) { return Harness::node(name, 3, 3, 9); };
  const auto a = h.join(member("a"));
  const auto b = h.join(member("b"));
  const auto c = h.join(member("c"));
  h.disconnect(c);
  for (const auto node : {a, b}) h.say(node, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 1u);
  ASSERT_FALSE(h.records.empty());
  EXPECT_EQ(h.records.back().restarts, 1);
  EXPECT_EQ(h.records.back().node_failures.size(), 1u);

  Harness next;
  next.restore(h.records.back());
  ConnectionId last = 0;
  for (const char* const name : {"a", "b", "c"}) {
    wire::Join join = member(name);
    join.last_round = 0;
    last = next.join(join);
  }
  EXPECT_EQ(next.last<wire::RoundStart>(last).round, 1);
  EXPECT_EQ(next.last<wire::RoundStart>(last).restarts, 1);
}

TEST(Record, NodesOfAJobThatHasBegunAreNotWaitedForAsLongAsAtItsBeginning) {
  Harness h;
  h.restore(Harness::record(8, 2, 40));
  wire::Join back = Harness::node("a", 1, 2, 5);
  back.last_round = 7;
  back.rules.last_call_ms = 30'000;
  h.join(back);
  h.pass(Duration{5'500});
  EXPECT_TRUE(h.rounds.empty());
  h.pass(Duration{500});
  EXPECT_EQ(h.rounds.size(), 1u);
}

TEST(Record, AJobThatIsOverStaysOver) {
  Harness h;
  JobRecord over = Harness::record(8, 2, 40);
  over.finished = true;
  over.result = {7, "why", "report", "error"};
  h.restore(nlohmann::json(over).get<JobRecord>());
  wire::Join member = Harness::node("a", 1, 1, 5);
  member.last_round = 7;
  member.running_round = 7;
  const auto a = h.join(member);
  EXPECT_EQ(h.last<wire::Finish>(a).exit_code, 7);
  EXPECT_EQ(h.last<wire::Finish>(a).report, "report");
  EXPECT_EQ(h.last<wire::Finish>(a).error, "error") << "for a launcher above ddp-run";
  const auto stranger = h.join(Harness::node("s", 1, 1, 5));
  EXPECT_THAT(h.last<wire::Refused>(stranger).message, HasSubstr("is over: why"));
  EXPECT_TRUE(h.rounds.empty());
}

}  // namespace
}  // namespace ddp::rendezvous
