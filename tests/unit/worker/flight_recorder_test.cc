#include "worker/runtime/flight_recorder.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/errc.h"
#include "tests/support/sanitizer.h"
#include "worker/runtime/trace.h"

namespace ddp::runtime {
namespace {

using ::testing::ElementsAre;
using wire::FlightRecord;
using wire::FlightState;

// The begin of a region, shared with children.
class Region {
 public:
  Region()
      : bytes_(static_cast<std::byte*>(::mmap(nullptr, wire::kFlightBytes, PROT_READ | PROT_WRITE,
                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    DDP_CHECK(bytes_ != MAP_FAILED);
  }
  ~Region() { ::munmap(bytes_, wire::kFlightBytes); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  std::byte* bytes() const { return bytes_; }
  wire::Flight read() const { return std::move(wire::read_flight(bytes_)).value(); }

 private:
  std::byte* bytes_;
};

FlightRecorder::Issue all_reduce(std::uint64_t sequence) {
  FlightRecorder::Issue issue;
  issue.sequence = sequence;
  issue.count = 1'000 + sequence;
  issue.type = "bf16";
  issue.operation = "all_reduce";
  issue.tag = "bucket 3 (layer4.0.conv1.weight, layer4.1.bias)";
  return issue;
}

TEST(FlightRecorder, KeepsWhatAnOperationWentThrough) {
  const Region region;
  FlightRecorder world(region.bytes(), 5, "world");
  FlightRecorder some(region.bytes(), 5, "ranks 1,5");
  const auto first = world.issued(all_reduce(41));
  world.started(first);
  world.finished(first, true);
  FlightRecorder::Issue broadcast;
  broadcast.operation = "broadcast";
  broadcast.root = 1;
  const auto second = some.issued(broadcast);
  some.started(second);
  some.finished(second, false);
  world.started(world.issued(all_reduce(42)));
  world.issued(all_reduce(43));

  const wire::Flight flight = region.read();
  EXPECT_EQ(flight.rank, 5);
  EXPECT_EQ(flight.pid, ::getpid());
  EXPECT_THAT(flight.groups, ElementsAre("world", "ranks 1,5"));
  ASSERT_EQ(flight.records.size(), 4U);
  const FlightRecord& done = flight.records[0];
  EXPECT_EQ(done.state, FlightState::kDone);
  EXPECT_EQ(wire::operation_of(done), "all_reduce");
  EXPECT_EQ(wire::tag_of(done), "bucket 3 (layer4.0.conv1");
  EXPECT_EQ(done.sequence, 41U);
  EXPECT_EQ(done.count, 1'041U);
  EXPECT_LE(done.issued_ns, done.started_ns);
  EXPECT_LE(done.started_ns, done.ended_ns);
  EXPECT_EQ(flight.records[1].state, FlightState::kFailed);
  EXPECT_EQ(flight.records[1].group, 1U);
  EXPECT_EQ(flight.records[1].root, 1);
  EXPECT_EQ(flight.records[2].state, FlightState::kStarted);
  EXPECT_EQ(flight.records[2].ended_ns, 0);
  EXPECT_EQ(flight.records[3].state, FlightState::kIssued);
  EXPECT_EQ(flight.records[3].started_ns, 0);
}

TEST(FlightRecorder, TheOldestMakeRoomAndTheirEndsHurtNobody) {
  const Region region;
  FlightRecorder world(region.bytes(), 0, "world");
  const auto oldest = world.issued(all_reduce(0));
  for (std::uint64_t i = 1; i <= wire::kFlightEntries; ++i) world.issued(all_reduce(i));
  world.finished(oldest, false);
  const wire::Flight flight = region.read();
  ASSERT_EQ(flight.records.size(), wire::kFlightEntries);
  EXPECT_EQ(flight.records.front().sequence, 1U);
  EXPECT_EQ(flight.records.back().sequence, wire::kFlightEntries);
  for (const FlightRecord& record : flight.records) EXPECT_EQ(record.state, FlightState::kIssued);
}

TEST(FlightRecorder, ManyGroupsHaveRoomWithoutNames) {
  const Region region;
  FlightRecorder first(region.bytes(), 0, "world");
  for (std::size_t i = 1; i < wire::kFlightGroups + 3; ++i) {
    FlightRecorder(region.bytes(), 0, "some").issued(all_reduce(i));
  }
  const wire::Flight flight = region.read();
  EXPECT_EQ(flight.groups.size(), wire::kFlightGroups);
  EXPECT_EQ(flight.group_name(flight.records.back().group), "group 34");
}

// Several threads write while another reads: what it takes is whole.
TEST(FlightRecorder, AReaderTakesNoTornRecord) {
  const Region region;
  FlightRecorder world(region.bytes(), 0, "world");
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (std::uint64_t thread = 0; thread < 2; ++thread) {
    writers.emplace_back([&, thread] {
      for (std::uint64_t i = 0; !stop.load(); ++i) {
        // All that belongs together can be told from any of it.
        const std::uint64_t mark = 2 * i + thread;
        const std::string tag = std::to_string(mark);
        FlightRecorder::Issue issue;
        issue.sequence = issue.count = mark;
        issue.root = static_cast<Rank>(mark);
        issue.tag = tag;
        const auto slot = world.issued(issue);
        world.started(slot);
        world.finished(slot, true);
      }
    });
  }
  constexpr std::size_t kEnough = 3'000'000 / test::kSlowness;
  std::size_t seen = 0;
  std::size_t torn = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  while (seen < kEnough && std::chrono::steady_clock::now() < deadline) {
    for (const FlightRecord& record : region.read().records) {
      ++seen;
      const bool ended = record.ended_ns != 0;
      if (record.count != record.sequence || record.root != static_cast<Rank>(record.sequence) ||
          wire::tag_of(record) != std::to_string(record.sequence) ||
          (record.state == FlightState::kDone) != ended) {
        ++torn;
      }
    }
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_GE(seen, kEnough);
  EXPECT_EQ(torn, 0U);
}

TEST(FlightRecorder, AnEntryThatItsWriterLeftHalfDoneIsMissing) {
  const Region region;
  FlightRecorder world(region.bytes(), 0, "world");
  world.issued(all_reduce(0));
  world.issued(all_reduce(1));
  reinterpret_cast<wire::FlightRing*>(region.bytes())->entries[0].version += 1;
  ASSERT_EQ(region.read().records.size(), 1U);
  EXPECT_EQ(region.read().records[0].sequence, 1U);
}

TEST(FlightRecorder, OutlivesItsProcess) {
  const Region region;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FlightRecorder world(region.bytes(), 3, "world");
    world.started(world.issued(all_reduce(7)));
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const wire::Flight flight = region.read();
  EXPECT_EQ(flight.pid, child);
  ASSERT_EQ(flight.records.size(), 1U);
  EXPECT_EQ(flight.records[0].sequence, 7U);
  EXPECT_EQ(flight.records[0].state, FlightState::kStarted);
}

TEST(FlightRecorder, RefusesWhatItDoesNotKnow) {
  const Region region;
  EXPECT_EQ(wire::read_flight(region.bytes()).error().code, Errc::kNotFound);
  FlightRecorder world(region.bytes(), 0, "world");
  reinterpret_cast<wire::FlightRing*>(region.bytes())->version = 99;
  EXPECT_EQ(wire::read_flight(region.bytes()).error().code, Errc::kProtocol);
}

TEST(FlightRecorder, IsWrittenAsJsonLines) {
  const Region region;
  FlightRecorder world(region.bytes(), 2, "world");
  FlightRecorder::Issue issue = all_reduce(3);
  issue.tag = "cut in \xF0\x9F";
  world.finished(world.issued(issue), false);
  const std::string lines = wire::flight_json_lines(*wire::read_flight(region.bytes()));
  EXPECT_EQ(lines.find('\n'), lines.size() - 1);
  const auto json = nlohmann::json::parse(lines);
  EXPECT_EQ(json["rank"], 2);
  EXPECT_EQ(json["group"], "world");
  EXPECT_EQ(json["operation"], "all_reduce");
  EXPECT_EQ(json["type"], "bf16");
  EXPECT_EQ(json["state"], "failed");
  EXPECT_EQ(json["sequence"], 3);
}

// A span without a row is an operation of the group, and a program's is none.
TEST(ProgramLane, IsNoneOfLibddpsOwn) {
  EXPECT_EQ(program_lane(""), "program");
  EXPECT_EQ(program_lane(std::string_view("\0x", 2)), "program");
  EXPECT_EQ(program_lane("step"), "program step");
  EXPECT_EQ(program_lane("bucket 0 of 4"), "program bucket 0 of 4");
  EXPECT_EQ(program_lane("input"), "input");
}

}  // namespace
}  // namespace ddp::runtime
