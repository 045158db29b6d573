#include "agent/process/file_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <gtest/gtest.h>

#include "tests/support/event_loop.h"
#include "tests/support/pipe.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

// In place of a file: while nobody reads, a disk that stands still.
using Disk = test::Pipe;

UniqueFd new_file(const test::TempDir& dir, const std::string& name) {
  return UniqueFd(::open((dir.path() / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

UniqueFd full_disk() { return UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)); }

// What on_failure was told.
struct Failure {
  int calls = 0;
  std::string why;
  std::string rest;
  FileWriter::OnFailure taker() {
    return [this](const FileWriter::Failure& failure) {
      ++calls;
      why = failure.why;
      rest = failure.rest;
    };
  }
};

TEST(FileWriterTest, WritesToEachFileInOrder) {
  const test::TempDir dir;
  asio::io_context io;
  FileWriter writer(io);
  WrittenFile a = writer.open(new_file(dir, "a"), {});
  WrittenFile b = writer.open(new_file(dir, "b"), {});
  std::string expected;
  for (int i = 0; i < 1'000; ++i) {
    const std::string line = std::to_string(i) + "\n";
    a.write(line);
    b.write("b" + line);
    expected += line;
  }
  EXPECT_TRUE(test::run_until(io, [&] { return writer.empty(); }));
  EXPECT_EQ(dir.read("a"), expected);
  EXPECT_EQ(dir.read("b").size(), expected.size() + 1'000);
}

TEST(FileWriterTest, ADiskThatStandsStillHoldsNobodyUp) {
  const test::TempDir dir;
  asio::io_context io;
  FileWriter writer(io);
  Disk disk;
  bool goes_on = false;
  WrittenFile file = writer.open(std::move(disk.write), {});
  const std::string bytes(2 * FileWriter::kQueueLimitBytes, 'x');
  file.write(bytes);
  EXPECT_TRUE(writer.full());
  EXPECT_FALSE(writer.empty());
  EXPECT_EQ(writer.queued_bytes(), bytes.size());
  const TimePoint taken = writer.last_taken();
  writer.when_not_full([&] { goes_on = true; });
  io.run_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(goes_on);
  EXPECT_EQ(writer.last_taken(), taken);
  file.close();
  EXPECT_TRUE(disk.read_all() == bytes);
  EXPECT_TRUE(test::run_until(io, [&] { return goes_on; }));
  EXPECT_FALSE(writer.full());
  EXPECT_TRUE(writer.empty());
  EXPECT_GE(writer.last_taken(), taken);
}

TEST(FileWriterTest, ADiskThatStandsStillIsToldNowAndThen) {
  asio::io_context io;
  std::vector<Duration> told;
  FileWriter writer(io, {[&](Duration stood) { told.push_back(stood); }, Duration{20}});
  Disk disk;
  WrittenFile file = writer.open(std::move(disk.write), {});
  const std::string bytes(1u << 20, 'x');
  file.write(bytes);
  EXPECT_TRUE(test::run_until(io, [&] { return told.size() == 3; }));
  EXPECT_GE(told.at(0), Duration{20});
  EXPECT_GE(told.at(1), 2 * told.at(0));
  EXPECT_GE(told.at(2), 2 * told.at(1));
  file.close();
  EXPECT_TRUE(disk.read_all() == bytes);
  EXPECT_TRUE(test::run_until(io, [&] { return writer.empty(); }));
  io.restart();
  io.run_for(std::chrono::milliseconds(50));
  EXPECT_EQ(told.size(), 3U);
}

// The thread may take all between full() and when_not_full().
TEST(FileWriterTest, WhoWaitsTooLateIsCalledToo) {
  asio::io_context io;
  FileWriter writer(io);
  bool goes_on = false;
  writer.when_not_full([&] { goes_on = true; });
  EXPECT_TRUE(test::run_until(io, [&] { return goes_on; }));
}

TEST(FileWriterTest, AFailureIsToldOnceWithAllThatIsMissing) {
  asio::io_context io;
  FileWriter writer(io);
  Failure failure;
  WrittenFile file = writer.open(full_disk(), failure.taker());
  file.write("one\n");
  file.write("two\n");
  EXPECT_FALSE(writer.empty());
  EXPECT_TRUE(test::run_until(io, [&] { return writer.empty(); }));
  EXPECT_EQ(failure.why, "No space left on device");
  EXPECT_EQ(failure.rest, "one\ntwo\n");
  file.write("three\n");
  file.close();
  io.restart();
  io.run_for(std::chrono::milliseconds(20));
  EXPECT_EQ(failure.calls, 1);
  EXPECT_TRUE(writer.empty());
}

// What waits when a call fails is no longer on its way to the disk.
TEST(FileWriterTest, AFailureWhileMoreWaitsLeavesNothingBehind) {
  ::signal(SIGPIPE, SIG_IGN);
  asio::io_context io;
  FileWriter writer(io);
  Failure failure;
  Disk disk;
  WrittenFile file = writer.open(std::move(disk.write), failure.taker());
  const std::string first(1u << 20, 'x');
  file.write(first);
  EXPECT_TRUE(test::run_until(io, [&] {
    char byte = 0;
    return ::read(disk.read.get(), &byte, 1) == 1;  // So the thread is in the call.
  }));
  file.write("second");
  disk.read.reset();
  EXPECT_TRUE(test::run_until(io, [&] { return writer.empty(); }));
  EXPECT_EQ(failure.why, "Broken pipe");
  EXPECT_EQ(writer.queued_bytes(), 0U);
  EXPECT_TRUE(failure.rest.ends_with("xsecond"));
  EXPECT_LT(failure.rest.size(), first.size() + 6);
}

TEST(FileWriterTest, AFailureIsToldAlsoWhenTheFileIsClosed) {
  asio::io_context io;
  FileWriter writer(io);
  Failure failure;
  {
    WrittenFile file = writer.open(full_disk(), failure.taker());
    file.write("one\n");
  }
  EXPECT_TRUE(test::run_until(io, [&] { return failure.calls > 0; }));
  EXPECT_EQ(failure.rest, "one\n");
}

// A disk that does not even open a file.
TEST(FileWriterTest, OpeningHoldsNobodyUpAndKeepsTheOrder) {
  const test::TempDir dir;
  asio::io_context io;
  std::vector<Duration> told;
  FileWriter writer(io, {[&](Duration stood) { told.push_back(stood); }, Duration{20}});
  std::promise<void> disk;
  WrittenFile first = writer.open(
      [&]() -> Result<UniqueFd> {
        disk.get_future().wait();
        return new_file(dir, "a");
      },
      {});
  std::string seen;
  writer.run(
      [&]() -> Result<void> {
        seen = dir.read("a");
        return {};
      },
      {});
  WrittenFile second = writer.open([&] { return Result<UniqueFd>(new_file(dir, "b")); }, {});
  first.write("one");
  second.write("two");
  EXPECT_TRUE(test::run_until(io, [&] { return !told.empty(); }));
  EXPECT_FALSE(writer.empty());
  EXPECT_EQ(writer.queued_bytes(), 6U);
  disk.set_value();
  EXPECT_TRUE(test::run_until(io, [&] { return writer.empty(); }));
  EXPECT_EQ(seen, "one");
  EXPECT_EQ(dir.read("b"), "two");
}

TEST(FileWriterTest, AFileThatCannotBeOpenedGivesBackWhatWasWritten) {
  asio::io_context io;
  FileWriter writer(io);
  Failure failure;
  Failure of_work;
  WrittenFile file =
      writer.open([]() -> Result<UniqueFd> { return make_error(Errc::kIo, "/logs/a: read-only"); },
                  failure.taker());
  file.write("one\n");
  file.close();
  writer.run([]() -> Result<void> { return make_error(Errc::kIo, "/logs/b: read-only"); },
             of_work.taker());
  EXPECT_FALSE(writer.empty());
  EXPECT_TRUE(test::run_until(io, [&] { return writer.empty(); }));
  EXPECT_EQ(failure.why, "/logs/a: read-only");
  EXPECT_EQ(failure.rest, "one\n");
  EXPECT_EQ(failure.calls, 1);
  EXPECT_EQ(of_work.why, "/logs/b: read-only");
  EXPECT_EQ(writer.queued_bytes(), 0U);
}

TEST(FileWriterTest, TheEndWaitsForTheDisk) {
  const test::TempDir dir;
  asio::io_context io;
  const std::string bytes(1u << 20, 'x');
  {
    FileWriter writer(io);
    WrittenFile file = writer.open(new_file(dir, "a"), {});
    file.write(bytes);
  }
  EXPECT_TRUE(dir.read("a") == bytes);
}

TEST(FileWriterTest, TheEndLeavesADiskThatStandsStill) {
  asio::io_context io;
  Disk disk;
  const std::string bytes(1u << 20, 'x');
  {
    FileWriter writer(io);
    writer.open(std::move(disk.write), {}).write(bytes);
  }
  // The thread, which is alone, still writes and closes.
  EXPECT_TRUE(disk.read_all() == bytes);
}

}  // namespace
}  // namespace ddp::agent
