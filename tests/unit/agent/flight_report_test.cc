#include "agent/core/flight_report.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::Flight;
using wire::FlightRecord;
using wire::FlightState;

constexpr std::int64_t kSecond = 1'000'000'000;

struct Step {
  const char* operation;
  std::uint64_t sequence;
  FlightState state;
  std::int64_t begin_ms;
  std::int64_t end_ms = 0;
  const char* tag = "";
  std::uint32_t group = 0;
};

Flight flight_of(Rank rank, const std::vector<Step>& steps,
                 std::vector<std::string> groups = {"world"}) {
  Flight flight;
  flight.rank = rank;
  flight.groups = std::move(groups);
  for (const Step& step : steps) {
    FlightRecord record;
    record.number = flight.records.size() + 1;
    record.sequence = step.sequence;
    record.group = step.group;
    record.state = step.state;
    record.issued_ns = step.begin_ms * 1'000'000;
    if (step.state != FlightState::kIssued) record.started_ns = record.issued_ns;
    record.ended_ns = step.end_ms * 1'000'000;
    std::memcpy(record.operation, step.operation, std::strlen(step.operation));
    std::memcpy(record.tag, step.tag, std::strlen(step.tag));
    flight.records.push_back(record);
  }
  return flight;
}

const Step kBroadcast{"broadcast", 40, FlightState::kDone, 100, 900};

TEST(FlightReport, NamesWhoWaitsAndWhoIsMissing) {
  const Step waits{"all_reduce", 41, FlightState::kFailed, 1'000, 3'000, "bucket 3"};
  const auto sentences =
      describe_flights({flight_of(0, {kBroadcast, waits}), flight_of(1, {kBroadcast}),
                        flight_of(2, {kBroadcast, waits}), flight_of(3, {kBroadcast, waits})},
                       60 * kSecond);
  EXPECT_THAT(sentences,
              ElementsAre("ranks 0,2-3 have waited 2.0 s in all_reduce #41 (bucket 3); rank 1 has "
                          "not issued it: its last operation was broadcast #40, done 2.1 s ago"));
}

TEST(FlightReport, OfQueuedOperationsTheFirstCounts) {
  const auto sentences =
      describe_flights({flight_of(0, {kBroadcast,
                                      {"all_reduce", 41, FlightState::kStarted, 1'000},
                                      {"barrier", 42, FlightState::kIssued, 1'001}}),
                        flight_of(1, {kBroadcast})},
                       1'250'000'000);
  EXPECT_THAT(sentences,
              ElementsAre("rank 0 has waited 250 ms in all_reduce #41; rank 1 has not issued it: "
                          "its last operation was broadcast #40, done 350 ms ago"));
}

TEST(FlightReport, DifferentOperationsStandSideBySide) {
  const auto sentences = describe_flights(
      {flight_of(0, {{"all_reduce", 5, FlightState::kFailed, 1'000, 3'000}}),
       flight_of(1, {{"barrier", 5, FlightState::kFailed, 2'000, 3'001}}), flight_of(2, {})},
      60 * kSecond);
  EXPECT_THAT(sentences,
              ElementsAre("rank 0 has waited 2.0 s in all_reduce #5; rank 1 has waited 1.0 s in "
                          "barrier #5; rank 2 waits in no operation: it has finished none"));
}

// A rank that computed when the others failed gets the failure at its next operation.
TEST(FlightReport, WhatWasIssuedAfterTheFailureDoesNotCount) {
  const auto sentences = describe_flights(
      {flight_of(0, {kBroadcast, {"all_reduce", 41, FlightState::kFailed, 1'000, 3'000}}),
       flight_of(1, {kBroadcast, {"all_reduce", 41, FlightState::kFailed, 3'500, 3'501}})},
      60 * kSecond);
  EXPECT_THAT(sentences,
              ElementsAre("rank 0 has waited 2.0 s in all_reduce #41; rank 1 has not issued it: "
                          "its last operation was broadcast #40, done 2.1 s ago"));
}

TEST(FlightReport, WhoeverIsThroughIsNotMissing) {
  const auto sentences =
      describe_flights({flight_of(0, {{"all_reduce", 41, FlightState::kFailed, 1'000, 3'000}}),
                        flight_of(1, {{"all_reduce", 41, FlightState::kDone, 1'000, 1'500}})},
                       60 * kSecond);
  EXPECT_THAT(sentences,
              ElementsAre("rank 0 has waited 2.0 s in all_reduce #41; rank 1 has finished it: its "
                          "last operation was all_reduce #41, done 1.5 s ago"));
}

TEST(FlightReport, ANodeWhereNobodyWaitsSaysSo) {
  EXPECT_THAT(describe_flights({flight_of(4, {kBroadcast}), flight_of(5, {kBroadcast})}, kSecond),
              ElementsAre("ranks 4-5 wait in no operation: their last operation was broadcast #40, "
                          "done 100 ms ago"));
}

TEST(FlightReport, GroupsAreToldApartByNameAndTheLastOfANameCounts) {
  const std::vector<std::string> groups{"world", "ranks 0,2", "ranks 0,2"};
  const Step old{"barrier", 9, FlightState::kDone, 10, 20, "", 1};
  const Step waits{"all_gather", 0, FlightState::kFailed, 1'000, 3'000, "", 2};
  const auto sentences =
      describe_flights({flight_of(0, {kBroadcast, old, waits}, groups), flight_of(1, {kBroadcast}),
                        flight_of(2, {kBroadcast, old}, groups)},
                       60 * kSecond);
  EXPECT_THAT(
      sentences,
      ElementsAre(
          "ranks 0-2 wait in no operation: their last operation was broadcast #40, done 2.1 s ago",
          "in group ranks 0,2: rank 0 has waited 2.0 s in all_gather #0; rank 2 has not issued it: "
          "it has finished none"));
}

TEST(FlightReport, NothingIsKnownOfWorkersWithoutAGroup) {
  EXPECT_THAT(describe_flights({}, kSecond), IsEmpty());
}

}  // namespace
}  // namespace ddp::agent
