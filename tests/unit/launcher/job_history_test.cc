// What GET /history says of a job.
#include "launcher/rendezvous/job_history.h"

#include <cstdint>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using testing::HasSubstr;
using Harness = CoordinatorHarness;

nlohmann::json history(const Harness& h) { return h.core.history(h.now).at(0); }

wire::Heartbeat beat(std::int64_t step, double loss) {
  wire::Heartbeat made;
  made.step = step;
  made.loss = loss;
  return made;
}

wire::Heartbeat beat_with_speed(std::int64_t step, double loss, double samples_per_second) {
  wire::Heartbeat made = beat(step, loss);
  made.samples_per_second = samples_per_second;
  return made;
}

TEST(History, WhatATrainingThatHangsHasToldLastIsNoNewValue) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 3));
  for (const std::int64_t step : {1, 11, 21, 21, 21, 21}) {
    h.say(a, beat_with_speed(step, 2, 640));
    h.now += Duration{1'000};
  }
  const auto curves = history(h).at("curves");
  EXPECT_EQ(curves.at("loss").at("points"),
            nlohmann::json::parse("[[0, 2.0, 2.0, 2.0], [1, 2.0, 2.0, 2.0], [2, 2.0, 2.0, 2.0]]"));
  const auto speed = curves.at("samples_per_second").at("points");
  ASSERT_EQ(speed.size(), 6u);
  EXPECT_EQ(speed.at(2).at(1), 640);
  for (std::size_t i = 3; i < speed.size(); ++i) EXPECT_EQ(speed.at(i).at(1), 0) << i;
  EXPECT_EQ(h.core.status(h.now).at(0).nodes.at(0).samples_per_second, 0);
  // What comes after the hang counts at once.
  h.say(a, beat_with_speed(22, 1.5, 320));
  EXPECT_EQ(h.core.status(h.now).at(0).nodes.at(0).samples_per_second, 320);
  EXPECT_EQ(history(h).at("curves").at("loss").at("points").back().at(1), 1.5);
}

TEST(History, ATrainingOfLongStepsDoesNotStandStillBetweenThem) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 3));
  for (int second = 0; second < 30; ++second) {
    h.say(a, beat_with_speed(1 + second / 5, 2, 640));
    h.now += Duration{1'000};
    if (second < 6) continue;
    EXPECT_EQ(h.core.status(h.now).at(0).nodes.at(0).samples_per_second, 640) << second;
  }
  const auto curves = history(h).at("curves");
  EXPECT_EQ(curves.at("loss").at("points").size(), 6u);
}

TEST(History, HasEachRoundWithItsCauseAndTimes) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 3));
  h.now += Duration{250};
  const auto b = h.join(Harness::node("b", 2, 2, 3));
  h.now += Duration{100};
  h.say(a, beat(1, 2.5));
  h.now += Duration{1'000};
  h.say(a, beat(11, 2.0));
  h.say(b, beat(12, 9.0));  // Only the node with rank 0 makes curves.
  h.fail(b, 0, 9);
  h.now += Duration{40};
  h.say(a, wire::Stopped{0, {}});
  h.say(b, wire::Stopped{0, {}});
  h.now += Duration{60};
  h.say(b, beat(8, 2.1));
  const auto found = history(h);
  EXPECT_EQ(found.at("job_id"), "job");
  EXPECT_EQ(found.at("elapsed_ms"), 1'450);
  const auto rounds = found.at("rounds");
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].at("round"), 0);
  EXPECT_EQ(rounds[0].at("nodes"), 2);
  EXPECT_EQ(rounds[0].at("world_size"), 2);
  EXPECT_EQ(rounds[0].at("reason"), "first round");
  EXPECT_EQ(rounds[0].at("began_ms"), 250);
  EXPECT_EQ(rounds[0].at("first_step_ms"), 350);
  EXPECT_EQ(rounds[0].at("steps"), nlohmann::json({1, 12}));
  EXPECT_EQ(rounds[0].at("ended_ms"), 1'350);
  EXPECT_THAT(rounds[0].at("end").get<std::string>(), HasSubstr("SIGKILL"));
  EXPECT_EQ(rounds[1].at("began_ms"), 1'390);
  EXPECT_EQ(rounds[1].at("first_step_ms"), 1'450);
  EXPECT_EQ(rounds[1].at("steps"), nlohmann::json({8, 8}));
  EXPECT_THAT(rounds[1].at("reason").get<std::string>(), HasSubstr("SIGKILL"));
  EXPECT_FALSE(rounds[1].contains("ended_ms"));
  const auto loss = found.at("curves").at("loss").at("points");
  EXPECT_EQ(loss, nlohmann::json::parse("[[0, 2.5, 2.5, 2.5], [1, 2.0, 2.0, 2.0]]"));
}

TEST(History, EndsWithTheJob) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1));
  h.now += Duration{500};
  h.say(a, wire::Succeeded{0});
  h.now += Duration{5'000};
  const auto found = history(h);
  EXPECT_EQ(found.at("elapsed_ms"), 500);
  EXPECT_EQ(found.at("rounds")[0].at("ended_ms"), 500);
  EXPECT_THAT(found.at("rounds")[0].at("end").get<std::string>(), HasSubstr("succeeded"));
  EXPECT_FALSE(found.at("rounds")[0].contains("steps"));
}

TEST(History, OldRoundsAreForgotten) {
  const TimePoint began{Duration{5}};
  JobHistory history(began);
  for (Round round = 0; round < 1'200; ++round) {
    history.begin_round(began, round, 1, 1, "");
    history.end_round(began, "first");
    history.end_round(began, "second");
  }
  EXPECT_EQ(history.rounds().size(), JobHistory::kMaxRounds);
  EXPECT_EQ(history.forgotten(), 200u);
  EXPECT_EQ(history.rounds().front().round, 200);
  EXPECT_EQ(history.rounds().back().end, "first");
}

// A job in its second round, with a checkpoint, as its coordinator tells of it at 5 s.
nlohmann::json told() {
  JobHistory history(TimePoint{});
  const auto at = [](int ms) { return TimePoint{Duration{ms}}; };
  history.begin_round(at(100), 0, 2, 4, "first round");
  history.step(at(200), 1);
  history.end_round(at(1'000), "rank 1 failed");
  history.begin_round(at(1'100), 1, 2, 4, "rank 1 failed");
  history.step(at(1'200), 7);
  history.saved(at(1'300), {.round = 1, .step = 8, .bytes = 9, .seconds = 0.5, .published = true});
  history.saved(at(1'300), {.round = 1, .step = 8, .bytes = 9, .seconds = 0.5, .error = "full"});
  history.sample(at(1'400), 2.5, 100, 10);
  return history.facts(at(5'000));
}

// What was written after the last heartbeat comes with the end.
TEST(History, HasTheLastCheckpoints) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 3));
  const auto b = h.join(Harness::node("b", 2, 2, 3));
  h.fail(b, 0, 9);
  h.say(a, wire::Stopped{.round = 0, .failures = {}, .saved = {{.round = 0, .step = 8}}});
  h.say(b, wire::Stopped{0, {}});
  h.say(a, wire::Succeeded{.round = 1, .saved = {{.round = 1, .step = 9, .published = true}}});
  const auto checkpoints = history(h).at("checkpoints");
  ASSERT_EQ(checkpoints.size(), 2u);
  EXPECT_EQ(checkpoints[0].at("step"), 8);
  EXPECT_EQ(checkpoints[1].at("published"), true);
}

TEST(History, GoesOnUnderAnotherCoordinator) {
  const TimePoint heard{Duration{70'000}};
  const JobHistory history = JobHistory::restored(told(), heard);
  EXPECT_EQ(history.facts(heard), told());
  EXPECT_EQ(history.facts(heard + Duration{10}).at("elapsed_ms"), 5'010);
}

// Its nodes have gone on with their round.
TEST(History, ARoundThatGoesOnIsOneRound) {
  const TimePoint heard{Duration{70'000}};
  JobHistory history = JobHistory::restored(told(), heard);
  history.begin_round(heard + Duration{900}, 1, 2, 4, "");
  history.step(heard + Duration{1'000}, 9);
  history.end_round(heard + Duration{2'000}, "all succeeded");
  ASSERT_EQ(history.rounds().size(), 2u);
  const JobHistory::RoundRecord& round = history.rounds().back();
  EXPECT_EQ(round.began, Duration{1'100});
  EXPECT_EQ(round.first_step, Duration{1'200});
  EXPECT_EQ(round.until_step, 9);
  EXPECT_EQ(round.ended, Duration{7'000});
}

TEST(History, ARoundThatDoesNotGoOnEndedWhenItWasLastKnown) {
  const TimePoint heard{Duration{70'000}};
  JobHistory history = JobHistory::restored(told(), heard);
  history.begin_round(heard + Duration{900}, 2, 1, 2, "the rendezvous moved");
  ASSERT_EQ(history.rounds().size(), 3u);
  EXPECT_EQ(history.rounds()[1].ended, Duration{5'000});
  EXPECT_EQ(history.rounds()[1].end, "its coordinator was lost");
  EXPECT_EQ(history.rounds()[2].began, Duration{5'900});
}

// Another ddp-run may say anything.
TEST(History, OthersBytesAreRefusedOrBounded) {
  using nlohmann::json;
  const TimePoint heard{Duration{70'000}};
  EXPECT_THROW(JobHistory::restored(json::array(), heard), json::exception);
  EXPECT_THROW(JobHistory::restored(json::object(), heard), json::exception);
  for (const std::int64_t elapsed : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()}) {
    json facts = told();
    facts["elapsed_ms"] = elapsed;
    JobHistory history = JobHistory::restored(facts, heard);
    EXPECT_LE(history.began(), heard) << elapsed;
    history.sample(heard, 1, 1, 1);
  }
  json facts = told();
  facts["rounds"][0]["reason"] = std::string(1 << 20, 'x');
  facts["rounds"][0]["end"] = std::string(1 << 20, '"');
  facts["checkpoints"][0]["shares"] = std::numeric_limits<int>::max();
  JobHistory history = JobHistory::restored(facts, heard);
  history.saved(heard, {.round = 1, .step = 8, .bytes = 9});
  history.begin_round(heard, 7, 1, 1, std::string(1 << 20, 'y'));
  history.end_round(heard, std::string(1 << 20, 'z'));
  EXPECT_LT(history.facts(heard).dump().size(), 10'000u);
}

TEST(History, TheNextCoordinatorShowsItWithItsOwn) {
  Harness h;
  h.now = TimePoint{Duration{80'000}};
  h.core.restore(h.now, Harness::record(2, 1, 7), JobHistory::restored(told(), h.now));
  wire::Join back = Harness::node("a", 1, 1, 5);
  back.last_round = 1;
  h.now += Duration{300};
  h.join(back);
  const auto found = history(h);
  EXPECT_EQ(found.at("elapsed_ms"), 5'300);
  ASSERT_EQ(found.at("rounds").size(), 3u);
  EXPECT_EQ(found.at("rounds")[2].at("round"), 2);
  EXPECT_EQ(found.at("curves").at("loss").at("points").size(), 1u);
}

}  // namespace
}  // namespace ddp::rendezvous
