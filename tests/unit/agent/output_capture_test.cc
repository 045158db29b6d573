#include "agent/process/output_capture.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/rank_set.h"
#include "tests/support/event_loop.h"
#include "tests/support/pipe.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using std::string_literals::operator""s;
using test::Pipe;
using testing::ElementsAre;

// A console that is a pipe, as under `ddp-run ... | less`, and a worker's end of the pipe that is
// captured.
class OutputCaptureTest : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    console_ = Console::open(io_, screen_.write.get());
    ::fcntl(screen_.read.get(), F_SETFL, O_NONBLOCK);
  }

  static FileWriter::Opener opener(const std::string& path) {
    return [path]() -> Result<UniqueFd> {
      return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    };
  }

  std::shared_ptr<OutputCapture> capture(Pipe& pipe, const std::string& prefix,
                                         FileWriter::Opener file = {}) {
    OutputCapture::Route route;
    route.whole_lines = !prefix.empty();
    route.prefix = LinePrefix(prefix, {});
    return capture(pipe, std::move(route), std::move(file));
  }
  std::shared_ptr<OutputCapture> capture(Pipe& pipe, OutputCapture::Route route,
                                         FileWriter::Opener file = {}) {
    return OutputCapture::start(io_, std::move(pipe.read), console_, files_,
                                {std::move(route), std::move(file), true});
  }

  void write_to(const Pipe& pipe, std::string_view text) {
    while (!text.empty()) {
      const ssize_t size = ::write(pipe.write.get(), text.data(), text.size());
      if (size < 0 && errno == EAGAIN) {
        read_screen();
        io_.restart();
        io_.run_one_for(std::chrono::milliseconds(2));
        continue;
      }
      ASSERT_GT(size, 0);
      text.remove_prefix(static_cast<std::size_t>(size));
    }
  }

  void read_screen() { seen_ += screen_.read_all(); }

  bool wait_for_screen(const std::string& text) {
    return test::run_until(io_, [&] {
      read_screen();
      return seen_ == text;
    });
  }

  // True if the file gets this text.
  bool wait_for_file(const test::TempDir& dir, const std::string& name, const std::string& text) {
    return test::run_until(io_, [&] { return dir.read(name) == text; });
  }

  asio::io_context io_;
  FileWriter files_{io_};
  Pipe screen_;
  std::shared_ptr<Console> console_;
  std::string seen_;
};

TEST_F(OutputCaptureTest, WholeLinesGetThePrefix) {
  Pipe pipe;
  const auto worker = capture(pipe, "[host:3] ");
  write_to(pipe, "one\ntw");
  EXPECT_TRUE(wait_for_screen("[host:3] one\n")) << seen_;
  write_to(pipe, "o\n\n");
  EXPECT_TRUE(wait_for_screen("[host:3] one\n[host:3] two\n[host:3] \n")) << seen_;
}

TEST_F(OutputCaptureTest, WithoutPrefixBytesAppearAtOnceAsTheyAre) {
  Pipe pipe;
  const auto worker = capture(pipe, "");
  write_to(pipe, "password: ");
  EXPECT_TRUE(wait_for_screen("password: ")) << seen_;
}

// Lines of 64 bytes, so that the last kRecentBytes begin with one.
TEST_F(OutputCaptureTest, TheLastBytesAreWholeLines) {
  constexpr std::size_t kLines = OutputCapture::kRecentBytes / 64;
  const auto line = [](std::size_t number) { return fmt::format("{:<63}\n", number); };
  for (const std::size_t count : {std::size_t{0}, kLines - 1, kLines, kLines + 1, 5 * kLines}) {
    Pipe pipe;
    const auto worker = capture(pipe, "");
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += line(i);
    write_to(pipe, all);
    worker->drain();
    const std::string last =
        all.substr(all.size() - std::min(all.size(), std::size_t{OutputCapture::kRecentBytes}));
    EXPECT_EQ(worker->recent(), last) << count;
    write_to(pipe, "more");
    worker->drain();
    EXPECT_EQ(worker->recent(), (count < kLines ? last : last.substr(64)) + "more") << count;
    read_screen();
  }
}

// Such as a progress bar.
TEST_F(OutputCaptureTest, TheEndOfALongLineIsKept) {
  Pipe pipe;
  const auto worker = capture(pipe, "");
  write_to(pipe, std::string(3 * OutputCapture::kRecentBytes, 'x') + "\n");
  worker->drain();
  EXPECT_EQ(worker->recent(), std::string(OutputCapture::kRecentBytes - 1, 'x') + "\n");
}

TEST_F(OutputCaptureTest, ALastLineWithoutNewlineIsNotLost) {
  Pipe pipe;
  const auto worker = capture(pipe, "[h:0] ");
  write_to(pipe, "last words");
  worker->drain();
  EXPECT_TRUE(wait_for_screen("[h:0] last words\n")) << seen_;
  EXPECT_THAT(worker->tail(), ElementsAre("last words"));
}

TEST_F(OutputCaptureTest, TheEndOfThePipeEndsTheLastLine) {
  Pipe pipe;
  const auto worker = capture(pipe, "[h:0] ");
  write_to(pipe, "last words");
  pipe.write.reset();
  EXPECT_TRUE(wait_for_screen("[h:0] last words\n")) << seen_;
}

TEST_F(OutputCaptureTest, DrainDoesNotWaitForAGrandchildThatKeepsThePipe) {
  Pipe pipe;
  const auto worker = capture(pipe, "[h:0] ");
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  std::size_t filled = 0;
  while (::write(pipe.write.get(), "line\n", 5) == 5) filled += 5;
  worker->drain();
  // The writer is still there, and what it writes later appears as well.
  write_to(pipe, "later\n");
  std::string expected;
  for (std::size_t i = 0; i < filled / 5; ++i) expected += "[h:0] line\n";
  EXPECT_TRUE(wait_for_screen(expected + "[h:0] later\n"));
}

TEST_F(OutputCaptureTest, BinaryBytesPassUnchanged) {
  const test::TempDir dir;
  Pipe pipe;
  const auto worker = capture(pipe, "[h:0] ", opener(dir.path() / "out"));
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  write_to(pipe, bytes);
  worker->drain();
  worker->close();
  EXPECT_TRUE(wait_for_file(dir, "out", bytes));
  EXPECT_TRUE(
      wait_for_screen("[h:0] " + bytes.substr(0, 10) + "\n[h:0] " + bytes.substr(11) + "\n"));
}

TEST_F(OutputCaptureTest, ALineOfAMegabyteComesInMarkedPiecesAndWholeInTheFile) {
  const test::TempDir dir;
  Pipe pipe;
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  const auto worker = capture(pipe, "[h:0] ", opener(dir.path() / "out"));
  const std::size_t piece = LineSplitter::kMaxPieceBytes;
  const std::string line(16 * piece, 'x');
  write_to(pipe, line + "\nshort\n");
  std::string expected = "[h:0] " + line.substr(0, piece) + "\n";
  for (int i = 1; i < 16; ++i) expected += "[h:0]+ " + line.substr(0, piece) + "\n";
  EXPECT_TRUE(wait_for_screen(expected + "[h:0] short\n")) << seen_.size();
  worker->close();
  EXPECT_TRUE(wait_for_file(dir, "out", line + "\nshort\n"));
}

// tqdm into a pipe: no newline for hours.
TEST_F(OutputCaptureTest, AProgressBarIsSeenWhileItIsWritten) {
  const test::TempDir dir;
  Pipe pipe;
  const auto worker = capture(pipe, "[h:0] ", opener(dir.path() / "out"));
  write_to(pipe, "begins\n\r 10%\r 20%");
  EXPECT_TRUE(wait_for_screen("[h:0] begins\n[h:0] \r 10%\r 20%\n"));
  write_to(pipe, "\r 30%");
  EXPECT_TRUE(wait_for_screen("[h:0] begins\n[h:0] \r 10%\r 20%\n[h:0]+ \r 30%\n"));
  write_to(pipe, "\r100%\ndone\n");
  EXPECT_TRUE(
      wait_for_screen("[h:0] begins\n[h:0] \r 10%\r 20%\n[h:0]+ \r 30%\n[h:0]+ \r100%\n"
                      "[h:0] done\n"));
  worker->drain();
  EXPECT_THAT(worker->tail(), ElementsAre("begins", "\r 10%\r 20%", "\r 30%", "\r100%", "done"));
  worker->close();
  EXPECT_TRUE(wait_for_file(dir, "out", "begins\n\r 10%\r 20%\r 30%\r100%\ndone\n"));
}

TEST_F(OutputCaptureTest, TwoRanksNeverMixWithinALine) {
  Pipe pipes[2];
  const std::shared_ptr<OutputCapture> ranks[2] = {capture(pipes[0], "[h:0] "),
                                                   capture(pipes[1], "[h:1] ")};
  for (const Pipe& pipe : pipes) ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  constexpr int kLines = 200;
  // Each line is written in small parts, alternating between the two.
  for (int i = 0; i < kLines; ++i) {
    const std::size_t size = static_cast<std::size_t>(i) * 37 % 9'000;
    for (std::size_t at = 0; at <= size; at += 1'000) {
      for (int rank = 0; rank < 2; ++rank)
        write_to(pipes[rank],
                 std::string(std::min<std::size_t>(1'000, size - at), rank ? 'b' : 'a'));
      io_.restart();
      io_.poll();
    }
    for (const Pipe& pipe : pipes) write_to(pipe, "\n");
  }
  ASSERT_TRUE(test::run_until(io_, [&] {
    read_screen();
    return std::count(seen_.begin(), seen_.end(), '\n') == 2 * kLines;
  }));
  std::size_t at = 0;
  int next[2] = {0, 0};
  while (at < seen_.size()) {
    const std::size_t end = seen_.find('\n', at);
    const std::string line = seen_.substr(at, end - at);
    const int rank = line.starts_with("[h:1] ") ? 1 : 0;
    const std::size_t size = static_cast<std::size_t>(next[rank]++) * 37 % 9'000;
    ASSERT_EQ(line, "[h:" + std::to_string(rank) + "] " + std::string(size, rank ? 'b' : 'a'));
    at = end + 1;
  }
}

TEST_F(OutputCaptureTest, TheTailIsTheLastTwentyLinesCutToALimit) {
  Pipe pipe;
  const auto worker = capture(pipe, "");
  for (int i = 0; i < 30; ++i) write_to(pipe, "line " + std::to_string(i) + "\n");
  write_to(pipe, std::string(5'000, 'x') + "\n");
  worker->drain();
  const std::vector<std::string> tail = worker->tail();
  ASSERT_EQ(tail.size(), OutputCapture::kTailLines);
  EXPECT_EQ(tail.front(), "line 11");
  EXPECT_EQ(tail.back(), std::string(OutputCapture::kTailLineBytes, 'x'));
}

TEST_F(OutputCaptureTest, AReaderThatStopsHoldsTheWorkerUpAndNotTheAgent) {
  Pipe pipe;
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  const auto worker = capture(pipe, "[h:0] ");
  const std::string line(999, 'x');
  // Nobody reads the screen. The loop stays responsive, and at some point the worker's pipe is
  // full.
  int written = 0;
  for (int idle = 0; idle < 50;) {
    if (::write(pipe.write.get(), (line + "\n").data(), 1'000) == 1'000) {
      ++written;
      idle = 0;
    } else {
      ++idle;
    }
    io_.restart();
    io_.poll();
  }
  EXPECT_GT(written, 1'000);
  EXPECT_TRUE(console_->full());
  EXPECT_LT(written, 3'000) << "what waits for the console has no bound";
  // As soon as it reads again nothing is missing.
  std::string expected;
  for (int i = 0; i < written; ++i) expected += "[h:0] " + line + "\n";
  EXPECT_TRUE(wait_for_screen(expected)) << seen_.size() << " of " << expected.size();
}

TEST_F(OutputCaptureTest, AReaderThatIsGoneStopsNobody) {
  const test::TempDir dir;
  Pipe pipe;
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  const auto worker = capture(pipe, "[h:0] ", opener(dir.path() / "out"));
  screen_.read.reset();
  const std::string text(2u << 20, 'x');
  write_to(pipe, text + "\n");
  worker->drain();
  worker->close();
  EXPECT_TRUE(wait_for_file(dir, "out", text + "\n"));
}

TEST_F(OutputCaptureTest, AFullDiskStopsTheFileAndIsTold) {
  Pipe pipe;
  const auto worker = capture(pipe, "[h:0] ", opener("/dev/full"));
  write_to(pipe, "text\nmore\n");
  EXPECT_TRUE(wait_for_screen(
      "[h:0] text\n[h:0] more\n"
      "ddp-run: --log-dir: the log file of [h:0] cannot be written: No space left on device\n"))
      << seen_;
}

TEST_F(OutputCaptureTest, WhatIsRedirectedIsNotShownAndNotHeldUp) {
  const test::TempDir dir;
  Pipe quiet;
  Pipe loud;
  for (const Pipe* pipe : {&quiet, &loud}) ::fcntl(pipe->write.get(), F_SETFL, O_NONBLOCK);
  OutputCapture::Route route;
  route.to_console = false;
  const auto redirected = capture(quiet, std::move(route), opener(dir.path() / "out"));
  const auto shown = capture(loud, "[h:0] ");
  // Nobody reads the console.
  ASSERT_TRUE(test::run_until(io_, [&] {
    [[maybe_unused]] const auto size =
        ::write(loud.write.get(), std::string(4'096, '\n').data(), 4'096);
    return console_->full();
  }));
  const std::string text(1u << 20, 'x');
  std::string_view rest = text;
  ASSERT_TRUE(test::run_until(io_, [&] {
    const ssize_t size = ::write(quiet.write.get(), rest.data(), rest.size());
    if (size > 0) rest.remove_prefix(static_cast<std::size_t>(size));
    return rest.empty();
  }));
  redirected->drain();
  EXPECT_TRUE(wait_for_file(dir, "out", text));
  EXPECT_EQ(redirected->tail().size(), 1U);
  read_screen();
  EXPECT_EQ(seen_.find('x'), std::string::npos);
}

TEST_F(OutputCaptureTest, AFullDiskBringsWhatWasRedirectedToTheConsole) {
  Pipe pipe;
  OutputCapture::Route route;
  route.to_console = false;
  route.whole_lines = true;
  route.prefix = LinePrefix("[h:0] ", {});
  const auto worker = capture(pipe, std::move(route), opener("/dev/full"));
  write_to(pipe, "text\n");
  EXPECT_TRUE(wait_for_screen(
      "ddp-run: --log-dir: the log file of [h:0] cannot be written: No space left on device\n"
      "[h:0] text\n"))
      << seen_;
}

// A line that has begun when the file fails, and goes on after it, comes once and whole.
TEST_F(OutputCaptureTest, ALineThatTheDiskCutsIsWholeOnTheConsole) {
  for (const bool keeps_tail : {true, false}) {
    seen_.clear();
    Pipe pipe;
    OutputCapture::Route route;
    route.to_console = false;
    route.whole_lines = true;
    route.prefix = LinePrefix("[h:0] ", {});
    const std::string note =
        "ddp-run: --log-dir: the log file of [h:0] cannot be written: No space left on device\n";
    const auto worker = OutputCapture::start(io_, std::move(pipe.read), console_, files_,
                                             {std::move(route), opener("/dev/full"), keeps_tail});
    write_to(pipe, "one\ntw");
    ASSERT_TRUE(wait_for_screen(note + "[h:0] one\n")) << seen_;
    write_to(pipe, "o\nthree\n");
    EXPECT_TRUE(wait_for_screen(note + "[h:0] one\n[h:0] two\n[h:0] three\n")) << seen_;
    // It goes there in the next round, too.
    OutputCapture::Route next;
    next.to_console = false;
    next.whole_lines = true;
    worker->begin_round(std::move(next), "---");
    write_to(pipe, "four\n");
    EXPECT_TRUE(wait_for_screen(note + "[h:0] one\n[h:0] two\n[h:0] three\nfour\n")) << seen_;
  }
}

TEST_F(OutputCaptureTest, AFailureThatIsFoundAfterTheEndIsShown) {
  Pipe pipe;
  OutputCapture::Route route;
  route.to_console = false;
  route.whole_lines = true;
  route.prefix = LinePrefix("[h:0] ", {});
  auto worker = capture(pipe, std::move(route), opener("/dev/full"));
  write_to(pipe, "one\ntwo");
  worker->drain();
  worker->close();
  worker.reset();
  EXPECT_TRUE(wait_for_screen(
      "ddp-run: --log-dir: the log file of [h:0] cannot be written: No space left on device\n"
      "[h:0] one\n[h:0] two\n"))
      << seen_;
}

// As if the disk stood still: nobody reads the pipe that is the file.
TEST_F(OutputCaptureTest, AFileThatTakesNothingHoldsTheWorkerUpAndNotTheAgent) {
  Pipe pipe;
  Pipe disk;
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  OutputCapture::Route route;
  route.to_console = false;
  const auto worker =
      capture(pipe, std::move(route), [&] { return Result<UniqueFd>(std::move(disk.write)); });
  const std::string bytes(4'096, 'x');
  std::size_t written = 0;
  const auto write_some = [&] {
    const ssize_t size = ::write(pipe.write.get(), bytes.data(), bytes.size());
    if (size > 0) written += static_cast<std::size_t>(size);
    return size < 0;
  };
  ASSERT_TRUE(test::run_until(io_, [&] { return write_some() && files_.full(); }));
  while (!write_some()) {
  }
  EXPECT_LT(written, 2 * FileWriter::kQueueLimitBytes);
  std::size_t seen = 0;
  char buffer[64 * 1024];
  ::fcntl(disk.read.get(), F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(test::run_until(io_,
                              [&] {
                                const ssize_t size =
                                    ::read(disk.read.get(), buffer, sizeof(buffer));
                                if (size > 0) seen += static_cast<std::size_t>(size);
                                return seen == written;
                              }))
      << seen << " of " << written;
}

TEST_F(OutputCaptureTest, WholeLinesWithoutPrefix) {
  Pipe pipe;
  OutputCapture::Route route;
  route.whole_lines = true;
  const auto worker = capture(pipe, std::move(route));
  write_to(pipe, "one\ntw");
  EXPECT_TRUE(wait_for_screen("one\n")) << seen_;
  worker->drain();
  EXPECT_TRUE(wait_for_screen("one\ntw\n")) << seen_;
}

TEST_F(OutputCaptureTest, MatchingLinesAreAlsoInTheFilteredLog) {
  const test::TempDir dir;
  Pipe pipe;
  OutputCapture::Route route;
  route.to_console = false;
  route.prefix = LinePrefix("[h:0] ", {});
  route.filtered = std::make_shared<FilteredLog>(
      files_.open(UniqueFd(::open((dir.path() / "f").c_str(),
                                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)),
                  {}),
      std::vector<std::string>{"loss", "a,b"});
  const auto worker = capture(pipe, std::move(route));
  write_to(pipe, "step 1\nloss 2\nthe a,b of it\nlos");
  worker->drain();
  EXPECT_TRUE(wait_for_file(dir, "f", "[h:0] loss 2\n[h:0] the a,b of it\n"));
}

TEST_F(OutputCaptureTest, TheSharedDescriptionKeepsItsFlags) {
  EXPECT_EQ(::fcntl(screen_.write.get(), F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace ddp::agent
