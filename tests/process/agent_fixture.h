#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"
#include "tests/support/process.h"
#include "tests/support/process_table.h"
#include "tests/support/programs.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// A memory file that a child inherits, for --job-fd and --result-fd.
inline UniqueFd inherited_file(const std::string& content = "") {
  UniqueFd fd(::memfd_create("inherited", 0));
  if (::write(fd.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()))
    return UniqueFd();
  ::lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

// One ddp-agent as ddp-run starts it.
class Agent {
 public:
  // `wrapper` comes before the agent's own command line.
  Agent(const config::JobSpec& spec, const std::string& mark, std::vector<std::string> wrapper = {},
        const std::vector<std::string>& more = {})
      : job_(inherited_file(config::encode(spec))), result_(inherited_file()) {
    std::vector<std::string> command = std::move(wrapper);
    command.insert(command.end(), {bin("ddp-agent"), "--job-fd", std::to_string(job_.get()),
                                   "--result-fd", std::to_string(result_.get())});
    command.insert(command.end(), more.begin(), more.end());
    process_ = std::make_unique<Process>(
        std::move(command),
        ProcessOptions{{{"DDP_TEST_JOB", mark}, {"TMPDIR", tmp_.path()}}, "", {}});
  }

  Process& process() { return *process_; }
  std::optional<int> wait() { return process_->wait(); }
  // What it has told its ddp-run; an error while it has not.
  Result<config::AgentResult> result() const {
    char buffer[64 * 1024];
    const ssize_t size = ::pread(result_.get(), buffer, sizeof(buffer), 0);
    return config::decode_agent_result({buffer, static_cast<std::size_t>(size > 0 ? size : 0)});
  }

 private:
  TempDir tmp_;
  UniqueFd job_;
  UniqueFd result_;
  std::unique_ptr<Process> process_;
};

// Real ddp-agent processes against a real ddp-rendezvous. Everything that a test starts carries a
// mark in its environment, and each test ends with looking that nothing with this mark is left.
class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    static int count = 0;
    mark_ = "agent-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  }

  void SetUp() override {
    rendezvous_ = std::make_unique<Process>(
        std::vector<std::string>{bin("ddp-rendezvous"), "--port", "0", "--bind", "127.0.0.1"});
    ASSERT_TRUE(rendezvous_->prints("listening on 127.0.0.1:")) << rendezvous_->err();
    const std::string line = rendezvous_->out();
    port_ = std::atoi(line.c_str() + line.find(':', line.find("127.0.0.1")) + 1);
    ASSERT_GT(port_, 0) << line;
  }
  void TearDown() override {
    agents_.clear();
    EXPECT_TRUE(is_gone()) << "something of the job still runs";
  }

  config::JobSpec spec(std::vector<std::string> command, int nproc = 2) const {
    config::JobSpec spec;
    spec.job_id = mark_;
    spec.node_id = "node";
    spec.host = "here";
    spec.coordinator_host = "127.0.0.1";
    spec.coordinator_port = port_;
    spec.nproc = nproc;
    spec.command = std::move(command);
    return spec;
  }
  config::JobSpec shell(const std::string& script, int nproc = 2) const {
    return spec({"sh", "-c", script}, nproc);
  }

  Agent& start(const config::JobSpec& job, std::vector<std::string> wrapper = {},
               const std::vector<std::string>& more = {}) {
    agents_.push_back(std::make_unique<Agent>(job, mark_, std::move(wrapper), more));
    return *agents_.back();
  }

  // The project promises two seconds from SIGKILL; the limit is for broken code.
  bool is_gone() const {
    return wait_until([this] { return processes_with("DDP_TEST_JOB=" + mark_).empty(); });
  }

  std::string mark_;
  int port_ = 0;
  std::unique_ptr<Process> rendezvous_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace ddp::test
