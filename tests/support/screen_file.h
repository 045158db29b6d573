#pragma once

#include <fcntl.h>

#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <gtest/gtest.h>

#include "agent/process/console.h"
#include "agent/process/round_processes.h"
#include "tests/support/event_loop.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// The console of an agent's processes as a file, as under `ddp-run > screen`.
class ScreenFile {
 public:
  ScreenFile(asio::io_context& io, const TempDir& dir) : io_(io), dir_(dir) {
    const UniqueFd file(
        ::open((dir.path() / "screen").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    fd_.reset(::fcntl(file.get(), F_DUPFD_CLOEXEC, 10));
    console_ = agent::Console::open(io, fd_.get());
  }

  agent::Console::Pair pair() const { return {console_, console_}; }
  // The thread that writes files is through with what it has been given: of this, and of the logs.
  // It tells the event loop what has failed, which may write that to the console.
  void wait_for_files(agent::RoundProcesses& processes) const {
    EXPECT_TRUE(run_until(io_, [&] { return processes.files().empty() && console_->empty(); }));
  }
  std::string text(agent::RoundProcesses& processes) const {
    wait_for_files(processes);
    return dir_.read("screen");
  }

 private:
  asio::io_context& io_;
  const TempDir& dir_;
  UniqueFd fd_;
  std::shared_ptr<agent::Console> console_;
};

}  // namespace ddp::test
