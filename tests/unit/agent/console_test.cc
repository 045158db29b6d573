#include "agent/process/console.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <termios.h>

#include "tests/support/event_loop.h"
#include "tests/support/pipe.h"
#include "tests/support/pseudo_terminal.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

struct ConsolePipe : test::Pipe {
  ConsolePipe() { ::fcntl(read.get(), F_SETFL, O_NONBLOCK); }
  // What can be read now.
  std::string text() const { return read_all(); }
};

TEST(Console, AFileIsWrittenAtItsSharedOffset) {
  const test::TempDir dir;
  asio::io_context io;
  UniqueFd file(::open((dir.path() / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const auto console = Console::open(io, file.get());
  const auto all_is_written = [&] { return console->empty(); };
  console->write("ours\n");
  ASSERT_TRUE(test::run_until(io, all_is_written));
  ASSERT_EQ(::write(file.get(), "the shell's\n", 12), 12);
  console->write("ours again\n");
  ASSERT_TRUE(test::run_until(io, all_is_written));
  EXPECT_EQ(dir.read("out"), "ours\nthe shell's\nours again\n");
}

TEST(Console, WhatAReaderDoesNotReadIsKept) {
  asio::io_context io;
  ConsolePipe pipe;
  const auto console = Console::open(io, pipe.write.get());
  console->write(std::string(200'000, 'x'));
  io.run_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(console->empty());
  std::string text;
  EXPECT_TRUE(test::run_until(io, [&] {
    text += pipe.text();
    return console->empty();
  }));
  EXPECT_EQ(text + pipe.text(), std::string(200'000, 'x'));
}

// Lines of up to PIPE_BUF bytes are never cut, whoever else writes to the pipe.
TEST(Console, APipeGetsWholeLines) {
  ::signal(SIGPIPE, SIG_IGN);
  asio::io_context io;
  ConsolePipe pipe;
  const auto console = Console::open(io, pipe.write.get());
  // Of 99 bytes, which do not fill pages.
  const std::string line = std::string(98, 'x') + "\n";
  std::string lines;
  for (int i = 0; i < 5'000; ++i) lines += line;
  console->write(lines);
  std::string seen;
  while (!console->empty()) {
    const std::string more = pipe.text();
    ASSERT_EQ(more.size() % line.size(), 0U);
    seen += more;
    io.restart();
    io.poll();
  }
  EXPECT_TRUE(seen + pipe.text() == lines);
}

class StalledConsole : public testing::Test {
 protected:
  StalledConsole() : console_(Console::open(io_, pipe_.write.get())) {
    ::signal(SIGPIPE, SIG_IGN);
    console_->set_stall_limit(Duration(50), "look elsewhere");
  }

  // Until the console is full.
  std::string fill() {
    std::string written;
    for (int i = 0; !console_->full(); ++i) {
      const std::string line = "line " + std::to_string(i) + std::string(1'000, '.') + "\n";
      console_->write(line);
      written += line;
    }
    return written;
  }
  bool wait_for_room() {
    bool called = false;
    console_->when_not_full([&called] { called = true; });
    return test::run_until(io_, [&called] { return called; });
  }

  asio::io_context io_;
  ConsolePipe pipe_;
  std::shared_ptr<Console> console_;
};

TEST_F(StalledConsole, LinesAreLeftOutAndCounted) {
  const std::string before = fill();
  ASSERT_TRUE(wait_for_room());
  EXPECT_FALSE(console_->full());
  for (int i = 0; i < 3'000; ++i) console_->write("left out\n");
  console_->print("ddp-run: a notice");
  // The reader comes back: it gets what was there, what we have to say, and then goes on.
  std::string seen;
  ASSERT_TRUE(test::run_until(io_, [&] {
    seen += pipe_.text();
    return seen.find("look elsewhere\n") != std::string::npos;
  }));
  EXPECT_EQ(seen,
            before +
                "ddp-run: a notice\n"
                "ddp-run: 3000 lines (27000 bytes) of the workers were left out here, because "
                "nobody read this output for 0.05 s; look elsewhere\n");
  console_->write("shown\n");
  EXPECT_EQ(pipe_.text(), "shown\n");
  EXPECT_FALSE(console_->full());
}

TEST_F(StalledConsole, AReaderThatOnlyIsSlowGetsEverything) {
  // Far more than this process can be held up between two looks, far less than they take together.
  console_->set_stall_limit(Duration(4'000), "look elsewhere");
  std::string written = fill();
  // It stays full while the reader takes its pieces.
  const std::string more(50 * 8'192, 'm');
  console_->write(more + "\n");
  written += more + "\n";
  std::string seen;
  for (int i = 0; i < 50; ++i) {
    char buffer[8'192];
    const auto until = Clock::now() + Duration(100);
    while (Clock::now() < until) {
      io_.restart();
      io_.run_one_for(Duration(5));
    }
    const ssize_t size = ::read(pipe_.read.get(), buffer, sizeof(buffer));
    ASSERT_GT(size, 0);
    seen.append(buffer, static_cast<std::size_t>(size));
  }
  console_->write("last\n");
  ASSERT_TRUE(test::run_until(io_, [&] {
    seen += pipe_.text();
    return seen.ends_with("last\n");
  }));
  EXPECT_TRUE(seen == written + "last\n");
}

TEST_F(StalledConsole, WithoutALimitWritersWait) {
  console_->set_stall_limit(Duration(0), "");
  fill();
  io_.restart();
  io_.run_for(Duration(200));
  EXPECT_TRUE(console_->full());
}

class TerminalConsole : public testing::Test {
 protected:
  std::string sent() { return terminal_.sent(); }

  static constexpr const char* kErase = "\r\x1b[K";
  asio::io_context io_;
  test::PseudoTerminal terminal_{/*columns=*/40};
  std::shared_ptr<Console> console_ = Console::open(io_, terminal_.fd());
};

TEST_F(TerminalConsole, TheStatusStaysBelowTheLines) {
  console_->show_status("status 1");
  EXPECT_EQ(sent(), "status 1");
  console_->write("a line\nanother\n");
  EXPECT_EQ(sent(), std::string(kErase) + "a line\nanother\nstatus 1");
  console_->show_status("status 1");
  EXPECT_EQ(sent(), "");
  console_->show_status("status 2");
  EXPECT_EQ(sent(), std::string(kErase) + "status 2");
  console_->print("ddp-run: a notice");
  EXPECT_EQ(sent(), std::string(kErase) + "ddp-run: a notice\nstatus 2");
  console_->show_status("");
  EXPECT_EQ(sent(), kErase);
  console_->write("x\n");
  EXPECT_EQ(sent(), "x\n");
}

TEST_F(TerminalConsole, TheStatusNeverTearsALine) {
  console_->show_status("status");
  console_->write("half");
  EXPECT_EQ(sent(), "status" + std::string(kErase) + "half");
  console_->show_status("other");
  EXPECT_EQ(sent(), "");
  console_->write(" and half\n");
  EXPECT_EQ(sent(), " and half\nother");
}

TEST_F(TerminalConsole, TheStatusKeepsToItsLine) {
  console_->show_status(std::string(100, 's'));
  EXPECT_EQ(sent(), std::string(39, 's'));
}

TEST_F(TerminalConsole, AStoppedTerminalBlocksNobody) {
  console_->set_stall_limit(Duration(20), "");
  ASSERT_EQ(::tcflow(terminal_.fd(), TCOOFF), 0);  // Ctrl-S
  while (!console_->full()) console_->write(std::string(999, 'x') + "\n");
  bool called = false;
  console_->when_not_full([&called] { called = true; });
  EXPECT_TRUE(test::run_until(io_, [&called] { return called; }));
  console_->write("left out\n");
  ASSERT_EQ(::tcflow(terminal_.fd(), TCOON), 0);
  std::string seen;
  EXPECT_TRUE(test::run_until(io_, [&] {
    seen += sent();
    return seen.find("ddp-run: 1 line (9 bytes)") != std::string::npos;
  }));
  EXPECT_EQ(seen.find("left out\n"), std::string::npos);
}

TEST(Console, OnlyTerminalsHaveAStatus) {
  asio::io_context io;
  ConsolePipe pipe;
  const auto console = Console::open(io, pipe.write.get());
  console->show_status("status");
  console->write("line\n");
  EXPECT_EQ(pipe.text(), "line\n");
}

}  // namespace
}  // namespace ddp::agent
