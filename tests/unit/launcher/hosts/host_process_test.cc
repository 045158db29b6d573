// A child behind three pipes, and output that may block.
#include "launcher/hosts/host_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/hosts/output_writer.h"
#include "tests/support/process.h"
#include "tests/support/pseudo_terminal.h"

namespace ddp::hosts {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using testing::HasSubstr;

class HostProcessTest : public testing::Test {
 protected:
  std::shared_ptr<HostProcess> start(const std::vector<std::string>& argv) {
    auto process =
        HostProcess::start(io_, argv,
                           {.on_bytes =
                                [this](HostProcess::Stream stream, std::string_view bytes) {
                                  (stream == HostProcess::Stream::kOutput ? out_ : err_) += bytes;
                                },
                            .on_end = [this](int status) { status_ = status; }});
    EXPECT_TRUE(process) << process.error().message;
    return std::move(*process);
  }
  // Runs the loop until then.
  bool happens(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      io_.restart();
      io_.run_one_for(100ms);
    }
    return true;
  }
  bool ends() {
    return happens([this] { return status_.has_value(); });
  }

  asio::io_context io_;
  std::string out_, err_;
  std::optional<int> status_;
};

TEST_F(HostProcessTest, PassesInputAndBothOutputs) {
  const auto process = start({"sh", "-c", "cat; echo done >&2; exit 3"});
  const std::string megabyte(1 << 20, 'x');
  process->send("hello ");
  process->send(megabyte);
  process->close_input();
  ASSERT_TRUE(ends());
  EXPECT_EQ(WEXITSTATUS(*status_), 3);
  EXPECT_EQ(out_, "hello " + megabyte);
  EXPECT_EQ(err_, "done\n");
}

// Returns when nobody holds the write end of a pipe that the children of `start_children` inherit.
void run_to_their_end(const std::function<void()>& start_children) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  start_children();
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
}

// The pipes' ends are behind the process's in the queue of events when it is heard of, and asio
// gives what it knows of their descriptors to those of the next process.
TEST_F(HostProcessTest, TheEventsOfOneProcessDoNotEndTheNext) {
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::optional<int> first, second;
    std::shared_ptr<HostProcess> next;
    const auto begin_next = [&](int status) {
      first = status;
      next = *HostProcess::start(io_, {"sleep", "3"},
                                 {.on_bytes = [](HostProcess::Stream, std::string_view) {},
                                  .on_end = [&](int ended) { second = ended; }});
      asio::post(io_, [&] { next->kill(SIGKILL); });
    };
    std::shared_ptr<HostProcess> process;
    run_to_their_end([&] {
      process = *HostProcess::start(
          io_, {"sh", "-c", "sleep 0.01 & exit 3"},
          {.on_bytes = [](HostProcess::Stream, std::string_view) {}, .on_end = begin_next});
    });
    ASSERT_TRUE(happens([&] { return second.has_value(); }));
    EXPECT_EQ(WEXITSTATUS(*first), 3);
    ASSERT_TRUE(WIFSIGNALED(*second)) << "its end was waited for: status " << *second;
  }
}

TEST_F(HostProcessTest, ItsInputEndsWithTheObject) {
  auto process = start({"sh", "-c", "cat; echo over"});
  process->send("x\n");
  ASSERT_TRUE(happens([this] { return out_ == "x\n"; }));
  process->close_input();
  process.reset();
  ASSERT_TRUE(ends());
  EXPECT_EQ(out_, "x\nover\n");
}

TEST_F(HostProcessTest, WhoeverHoldsItsPipesIsNotWaitedFor) {
  const auto process = start({"sh", "-c", "sleep 600 & echo $!"});
  ASSERT_TRUE(ends());
  const pid_t left = std::atoi(out_.c_str());
  ASSERT_GT(left, 1);
  ::kill(left, SIGKILL);
}

TEST_F(HostProcessTest, IsInASessionOfItsOwn) {
  const auto process = start({"sh", "-c", "echo $$; ps -o sid= -p $$"});
  ASSERT_TRUE(ends());
  const std::size_t line = out_.find('\n');
  EXPECT_EQ(std::atoi(out_.c_str()), std::atoi(out_.c_str() + line)) << out_;
}

TEST_F(HostProcessTest, ASignalEndsIt) {
  const auto process = start({"sleep", "600"});
  process->kill(SIGKILL);
  ASSERT_TRUE(ends());
  EXPECT_EQ(WTERMSIG(*status_), SIGKILL);
  process->kill(SIGKILL);  // The number is nobody's any more, so nobody gets it.
  process->send("x");
}

TEST_F(HostProcessTest, IsNotReadWhilePausedAndLosesNothing) {
  const auto process = start({"sh", "-c", "yes 0123456789 | head -c 1000000; echo end >&2"});
  process->pause_reading();
  const auto until = std::chrono::steady_clock::now() + 100ms;
  happens([&] { return std::chrono::steady_clock::now() >= until; });
  EXPECT_LE(out_.size(), 65'536u);
  EXPECT_FALSE(status_);
  process->resume_reading();
  ASSERT_TRUE(ends());
  EXPECT_EQ(out_.size(), 1'000'000u);
  EXPECT_EQ(err_, "end\n");
}

TEST_F(HostProcessTest, APauseHoldsBackTheEndToo) {
  const auto process = start({"sh", "-c", "echo x"});
  process->pause_reading();
  const auto until = std::chrono::steady_clock::now() + 200ms;
  happens([&] { return std::chrono::steady_clock::now() >= until; });
  EXPECT_FALSE(status_);
  process->resume_reading();
  ASSERT_TRUE(ends());
  EXPECT_EQ(out_, "x\n");
}

TEST_F(HostProcessTest, AProgramThatIsNotThere) {
  const auto process = HostProcess::start(io_, {"/no/such/program"}, {});
  ASSERT_FALSE(process);
  EXPECT_EQ(process.error().code, Errc::kNotFound);
  EXPECT_THAT(process.error().message, HasSubstr("/no/such/program cannot be started: No such"));
}

TEST(OutputWriter, DoesNotBlockTheLoopAndSaysWhenThereIsRoom) {
  asio::io_context io;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  int calls = 0;
  const std::string text(OutputWriter::kFullBytes, 'x');
  std::string read;
  {
    OutputWriter writer(io, ends[1], [&] { ++calls; });
    writer.write(text);
    EXPECT_FALSE(writer.full());
    writer.write("more\n");
    EXPECT_TRUE(writer.full());
    std::array<char, 65'536> buffer;
    while (read.size() < text.size() + 5) {
      const ssize_t count = ::read(ends[0], buffer.data(), buffer.size());
      ASSERT_GT(count, 0);
      read.append(buffer.data(), static_cast<std::size_t>(count));
    }
    const auto work = asio::make_work_guard(io);
    EXPECT_TRUE(test::wait_until([&] { return io.poll() > 0; }));
    EXPECT_EQ(calls, 1);
    EXPECT_FALSE(writer.full());
    writer.write("last\n");
  }
  std::array<char, 16> rest{};
  EXPECT_EQ(::read(ends[0], rest.data(), rest.size()), 5) << "the end waits for what is queued";
  EXPECT_EQ(read, text + "more\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(OutputWriter, TheStatusStaysBelowTheLines) {
  const std::string erase = "\r\x1b[K";
  asio::io_context io;
  test::PseudoTerminal terminal(/*columns=*/20);
  std::string seen;
  const auto shows = [&](const std::string& wanted) {
    test::wait_until([&] { return (seen += terminal.sent()).size() >= wanted.size(); });
    return std::exchange(seen, "") == wanted;
  };
  {
    OutputWriter writer(io, terminal.fd(), [] {});
    writer.show_status("status 1");
    EXPECT_TRUE(shows("status 1"));
    writer.write("a line\nanother\n");
    EXPECT_TRUE(shows(erase + "a line\nanother\nstatus 1"));
    writer.show_status("status 1");
    writer.show_status("one that is longer than a row");
    EXPECT_TRUE(shows(erase + "one that is longer "));
    writer.write("half");
    EXPECT_TRUE(shows(erase + "half"));
    writer.show_status("status 2");
    writer.write(" and half\n");
    EXPECT_TRUE(shows(" and half\nstatus 2")) << "a status never tears a line";
  }
  EXPECT_TRUE(shows(erase)) << "the end takes it away";
}

TEST(OutputWriter, AReaderThatHasGoneIsNoReasonToFail) {
  ::signal(SIGPIPE, SIG_IGN);
  asio::io_context io;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  OutputWriter writer(io, ends[1], [] {});
  for (int i = 0; i < 100; ++i) writer.write(std::string(100'000, 'x'));
  const auto work = asio::make_work_guard(io);
  EXPECT_TRUE(test::wait_until([&] {
    io.poll();
    return !writer.full();
  }));
  ::close(ends[1]);
}

}  // namespace
}  // namespace ddp::hosts
