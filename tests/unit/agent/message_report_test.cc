#include "agent/core/message_report.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/core/flight_report.h"

namespace ddp::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::Flight;
using wire::FlightRecord;
using wire::FlightState;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kNow = 5'000 * kMs;

struct Message {
  const char* operation;
  Rank peer;
  std::uint32_t tag;
  std::uint64_t bytes;
  FlightState state;
  std::int64_t begin_ms;
  std::int64_t end_ms = 0;
  std::uint32_t group = 0;
  const char* text = "";
};

Flight flight_of(Rank rank, const std::vector<Message>& messages,
                 std::vector<std::string> groups = {"world"}) {
  Flight flight;
  flight.rank = rank;
  flight.groups = std::move(groups);
  for (const Message& message : messages) {
    FlightRecord record;
    record.number = flight.messages.size() + 1;
    record.sequence = flight.messages.size();
    record.count = message.bytes;
    record.element_bytes = 1;
    record.group = message.group;
    record.state = message.state;
    record.root = message.peer;
    record.message_tag = message.tag;
    record.issued_ns = message.begin_ms * kMs;
    if (message.state != FlightState::kIssued) record.started_ns = record.issued_ns;
    record.ended_ns = message.end_ms * kMs;
    std::memcpy(record.operation, message.operation, std::strlen(message.operation));
    std::memcpy(record.tag, message.text, std::strlen(message.text));
    flight.messages.push_back(record);
  }
  return flight;
}

const Message kHungRecv{"recv", 0, 7, 4'096, FlightState::kIssued, 3'000};

TEST(MessageReport, AReceiveIsNamedAndThatNothingWasSent) {
  EXPECT_THAT(
      describe_messages({flight_of(0, {}), flight_of(1, {kHungRecv})}, kNow),
      ElementsAre(
          "rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 has sent it nothing"));
}

TEST(MessageReport, WhatWasSentInsteadIsNamed) {
  const Message to_another{"send", 2, 7, 4'096, FlightState::kDone, 4'000, 4'001};
  const Message sent{"send", 1, 6, 2'560, FlightState::kDone, 2'000, 2'900};
  EXPECT_THAT(
      describe_messages({flight_of(0, {sent, to_another}), flight_of(1, {kHungRecv})}, kNow),
      ElementsAre("rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 last sent it "
                  "tag 6, 2.5 KiB 2.1 s ago"));
}

TEST(MessageReport, TwoThatWaitForEachOtherAreBothNamed) {
  const Message send{"send", 1, 8, 8 << 20, FlightState::kStarted, 3'500, 0, 0, "activations"};
  EXPECT_THAT(describe_messages({flight_of(0, {send}), flight_of(1, {kHungRecv})}, kNow),
              ElementsAre("rank 0 has waited 1.5 s in send to rank 1, tag 8, 8 MiB (activations); "
                          "rank 1 waits in recv from it, tag 7, 4 KiB",
                          "rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 waits "
                          "in send to it, tag 8, 8 MiB, of which some has moved"));
}

TEST(MessageReport, ASendSaysWhatItsReceiverTook) {
  const Message send{"send", 1, 8, 8 << 20, FlightState::kIssued, 4'500};
  const Message took{"recv", 0, 5, 100, FlightState::kDone, 1'000, 1'500};
  EXPECT_THAT(describe_messages({flight_of(0, {send}), flight_of(1, {took})}, kNow),
              ElementsAre("rank 0 has waited 500 ms in send to rank 1, tag 8, 8 MiB; rank 1 last "
                          "received tag 5, 100 bytes from it 3.5 s ago"));
  EXPECT_THAT(describe_messages({flight_of(0, {send}), flight_of(1, {})}, kNow),
              ElementsAre("rank 0 has waited 500 ms in send to rank 1, tag 8, 8 MiB; rank 1 has "
                          "received nothing from it"));
}

TEST(MessageReport, OfSeveralTheFirstCounts) {
  Message later = kHungRecv;
  later.tag = 9;
  EXPECT_THAT(describe_messages({flight_of(0, {}), flight_of(1, {kHungRecv, later, later})}, kNow),
              ElementsAre("rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB (and 2 more); "
                          "rank 0 has sent it nothing"));
}

// What was forgotten may have been the message.
TEST(MessageReport, NothingIsClaimedOfWhatIsForgotten) {
  Flight sender = flight_of(0, {{"send", 2, 7, 8, FlightState::kDone, 4'000, 4'001}});
  sender.messages.front().number = 2;
  EXPECT_THAT(describe_messages({sender, flight_of(1, {kHungRecv})}, kNow),
              ElementsAre("rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 has "
                          "sent it nothing in its last 128 messages"));
}

TEST(MessageReport, NothingIsClaimedOfAnotherNode) {
  EXPECT_THAT(describe_messages({flight_of(1, {kHungRecv})}, kNow),
              ElementsAre("rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB"));
}

TEST(MessageReport, GroupsAreToldApartByName) {
  Message in_group = kHungRecv;
  in_group.group = 1;
  // The same peer and tag in another group is another message.
  const Flight sender = flight_of(0, {{"send", 1, 7, 4'096, FlightState::kDone, 4'000, 4'001}});
  EXPECT_THAT(describe_messages({sender, flight_of(1, {in_group}, {"world", "ranks 0,1"})}, kNow),
              ElementsAre("in group ranks 0,1: rank 1 has waited 2.0 s in recv from rank 0, tag 7, "
                          "4 KiB; rank 0 has sent it nothing"));
  in_group.group = 40;
  EXPECT_THAT(
      describe_messages({sender, flight_of(1, {in_group})}, kNow),
      ElementsAre("in group group 40: rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB"));
}

TEST(MessageReport, WhatIsDoneOrCameAfterTheFailureIsNotWaitedFor) {
  Message done = kHungRecv;
  done.state = FlightState::kDone;
  done.end_ms = 3'100;
  Message late = kHungRecv;
  late.begin_ms = 5'001;
  EXPECT_THAT(describe_messages({flight_of(0, {}), flight_of(1, {done, late})}, kNow), IsEmpty());
}

// A rank that waits for a message does not count as one that waits in no operation.
TEST(MessageReport, StandsBesideTheOperations) {
  Message failed = kHungRecv;
  failed.state = FlightState::kFailed;
  failed.end_ms = 4'000;
  EXPECT_THAT(
      describe_flights({flight_of(0, {}), flight_of(1, {failed})}, kNow),
      ElementsAre(
          "rank 0 waits in no operation: it has finished none",
          "rank 1 has waited 1.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 has sent it nothing"));
}

}  // namespace
}  // namespace ddp::agent
