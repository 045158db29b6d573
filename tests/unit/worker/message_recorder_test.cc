#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/wire/flight_ring.h"
#include "tests/support/worker_world.h"

// Messages in the flight recorder: each one that a user sends or receives appears once, with its
// progress.
namespace ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using wire::FlightRecord;
using wire::FlightState;

constexpr std::size_t kLarge = 1'000'000;  // Does not fit into a ring.
// Nor into what a rank keeps of messages that it has not asked for.
constexpr std::size_t kHuge = 20'000'000;

// Worlds whose recorders can be read.
class World {
 public:
  explicit World(const std::vector<int>& nodes) {
    const auto store = std::make_shared<test::HashStore>();
    for (auto& transport : test::connected_transports(nodes, test::LinkKind::kSocketPair)) {
      segments_.push_back(transport->shared_segment());
      locals_.push_back(transport->topology().local_rank());
      groups.push_back(runtime::Group::make(std::move(transport), 0,
                                            test::options_of(std::chrono::seconds(60)),
                                            test::local_meeting(store)));
    }
  }

  wire::Flight flight(Rank rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return std::move(wire::read_flight(segments_[index]->flight(locals_[index]))).value();
  }
  std::vector<FlightRecord> messages(Rank rank) const { return flight(rank).messages; }
  ProcessGroup& operator[](Rank rank) { return *groups[static_cast<std::size_t>(rank)]; }

  std::vector<std::shared_ptr<ProcessGroup>> groups;

 private:
  std::vector<std::shared_ptr<transport::Segment>> segments_;
  std::vector<int> locals_;
};

// "send 1 tag 7, 20 bytes of f32: done"
std::string text_of(const FlightRecord& record) {
  const char* const states[] = {"?", "issued", "started", "done", "failed"};
  return wire::operation_of(record) + " " + std::to_string(record.root) + " tag " +
         std::to_string(record.message_tag) + ", " + std::to_string(bytes_of(record)) +
         " bytes of " + std::string(record.type, ::strnlen(record.type, sizeof(record.type))) +
         ": " + states[static_cast<int>(record.state)];
}

std::vector<std::string> texts_of(const std::vector<FlightRecord>& records) {
  std::vector<std::string> texts;
  for (const FlightRecord& record : records) texts.push_back(text_of(record));
  return texts;
}

void wait_until(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (!condition() && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(condition());
}

Buffer buffer_of(std::vector<float>& values) { return {values.data(), values.size(), DType::kF32}; }

class Messages : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(Messages, AreRecordedOnBothSides) {
  World world(GetParam());
  std::vector<float> small(5);
  std::vector<float> large(kLarge);
  test::on_ranks(2, [&](Rank rank) {
    if (rank == 0) {
      world[0].send(buffer_of(small), 1, 7, {})->wait();
      OpOptions named;
      named.tag = "activations";
      world[0].send(buffer_of(large), 1, 8, named)->wait();
    } else {
      std::vector<float> first(5);
      std::vector<float> second(kLarge);
      const WorkPtr later = world[1].recv(buffer_of(second), 0, 8, {});
      world[1].recv(buffer_of(first), 0, 7, {})->wait();
      later->wait();
    }
  });
  const auto sent = world.messages(0);
  EXPECT_THAT(texts_of(sent), ElementsAre("send 1 tag 7, 20 bytes of f32: done",
                                          "send 1 tag 8, 4000000 bytes of f32: done"));
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(wire::tag_of(sent[1]), "activations");
  EXPECT_EQ(sent[1].sequence, 1U);
  EXPECT_GE(sent[1].ended_ns, sent[1].issued_ns);
  const auto received = world.messages(1);
  EXPECT_THAT(texts_of(received), ElementsAre("recv 0 tag 8, 4000000 bytes of f32: done",
                                              "recv 0 tag 7, 20 bytes of f32: done"));
  for (const FlightRecord& record : received) EXPECT_GE(record.ended_ns, record.issued_ns);
  EXPECT_THAT(world.flight(0).records, IsEmpty());
}

TEST_P(Messages, ThatWaitSayHowFarTheyAre) {
  World world(GetParam());
  std::vector<float> small(5);
  std::vector<float> huge(kHuge);
  std::vector<float> target(kHuge);
  const WorkPtr hung = world[1].recv(buffer_of(small), 0, 7, {});
  EXPECT_THAT(texts_of(world.messages(1)), ElementsAre("recv 0 tag 7, 20 bytes of f32: issued"));
  // Begins, and cannot end while nobody takes it.
  const WorkPtr sent = world[0].send(buffer_of(huge), 1, 8, {});
  wait_until([&] {
    return texts_of(world.messages(0)) ==
           std::vector<std::string>{"send 1 tag 8, 80000000 bytes of f32: started"};
  });
  const auto before = world.messages(0).front();
  EXPECT_EQ(before.ended_ns, 0);
  EXPECT_GE(before.started_ns, before.issued_ns);
  world[1].recv(buffer_of(target), 0, 8, {})->wait();
  sent->wait();
  EXPECT_EQ(world.messages(0).front().state, FlightState::kDone);
  EXPECT_EQ(world.messages(0).front().started_ns, before.started_ns);
  // The first one still waits, and fails with the group.
  world[0].abort("enough");
  EXPECT_THROW(hung->wait(), CollectiveError);
  EXPECT_THAT(texts_of(world.messages(1)),
              ElementsAre("recv 0 tag 7, 20 bytes of f32: failed",
                          "recv 0 tag 8, 80000000 bytes of f32: done"));
}

INSTANTIATE_TEST_SUITE_P(Worlds, Messages,
                         ::testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         [](const auto& world) {
                           return world.param.size() == 1 ? "one_node" : "two_nodes";
                         });

TEST(MessagesOfOperations, AreNotRecorded) {
  World world({1, 2});
  test::on_ranks(3, [&](Rank rank) {
    std::vector<float> in(3 * kLarge / 10, 1.0F);
    std::vector<float> out(3 * kLarge / 10);
    world[rank].all_to_all(buffer_of(in), buffer_of(out), {})->wait();
    world[rank].monitored_barrier(std::chrono::seconds(20));
  });
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(world.messages(rank), IsEmpty());
    EXPECT_THAT(world.flight(rank).records, SizeIs(1));
  }
}

TEST(MessagesOfSubGroups, NameTheirPeersByTheWorld) {
  World world({4});
  test::on_ranks(4, [&](Rank rank) {
    // {3, 2, 1}, of which {3, 1}.
    const auto outer = world[rank].split(rank == 0 ? -1 : 0, -rank);
    if (rank == 0) return;
    const std::vector<Rank> ends = {0, 2};
    const auto inner = outer->new_group(ends);
    std::vector<float> value(1);
    if (rank == 3) inner->send(buffer_of(value), 1, 5, {})->wait();
    if (rank == 1) inner->recv(buffer_of(value), 0, 5, {})->wait();
  });
  EXPECT_THAT(texts_of(world.messages(3)), ElementsAre("send 1 tag 5, 4 bytes of f32: done"));
  EXPECT_THAT(texts_of(world.messages(1)), ElementsAre("recv 3 tag 5, 4 bytes of f32: done"));
  const wire::Flight flight = world.flight(1);
  EXPECT_EQ(flight.group_name(flight.messages.at(0).group),
            world.flight(3).group_name(world.messages(3).at(0).group));
}

TEST(ManyMessages, DoNotPushOutOperations) {
  World world({2});
  test::on_ranks(2, [&](Rank rank) {
    std::vector<float> value(1);
    world[rank].barrier()->wait();
    for (int i = 0; i < 1'000; ++i) {
      if (rank == 0) {
        world[0].send(buffer_of(value), 1, 1, {})->wait();
      } else {
        world[1].recv(buffer_of(value), 0, 1, {})->wait();
      }
    }
  });
  EXPECT_THAT(world.flight(0).records, SizeIs(1));
  EXPECT_THAT(world.messages(0), SizeIs(wire::kFlightMessages));
  EXPECT_EQ(world.messages(0).back().number, 1'000U);
}

}  // namespace
}  // namespace ddp
