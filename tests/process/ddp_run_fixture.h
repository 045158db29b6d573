#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/process_table.h"
#include "tests/support/programs.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// Starts real ddp-run processes. Everything that a test starts has a mark in its environment, and
// every test ends by checking that no process with this mark is left.
class DdpRunTest : public testing::Test {
 protected:
  using Arguments = std::vector<std::string>;

  // For what must be gone, on a busy machine.
  static constexpr auto kGoneLimit = 30s;

  DdpRunTest() {
    static int count = 0;
    mark_ = std::to_string(::getpid()) + "-" + std::to_string(++count);
    shared_memory_before_ = entries("/dev/shm");
  }

  void TearDown() override {
    jobs_.clear();
    EXPECT_TRUE(is_gone());
    // What other tests have there now goes again, and they make more; what a job leaves stays.
    std::set<std::string> left = entries("/dev/shm");
    for (const std::string& name : shared_memory_before_) left.erase(name);
    const auto is_gone_again = [&left] {
      const std::set<std::string> there = entries("/dev/shm");
      std::erase_if(left, [&there](const std::string& name) { return !there.contains(name); });
      return left.empty();
    };
    EXPECT_TRUE(wait_until(is_gone_again, kGoneLimit))
        << "left in /dev/shm: " << testing::PrintToString(left);
    EXPECT_TRUE(std::filesystem::is_empty(tmp_.path())) << "something was left in TMPDIR";
  }

  // As in the prefix of a worker's lines.
  static std::string host() {
    char name[256] = {};
    ::gethostname(name, sizeof(name) - 1);
    return name;
  }

  // ddp-run with these arguments; lives until the end of the test at the latest. A shell's $$ has
  // to be ${$} in them: ddp-run makes one dollar of two, as torchrun does.
  Process& start(const Arguments& arguments, std::map<std::string, std::string> environment = {},
                 const std::string& program = bin("ddp-run")) {
    Arguments command{program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    environment.emplace("DDP_TEST_JOB", mark_);
    environment.emplace("TMPDIR", tmp_.path());
    environment.emplace("OUT", folder_.path());
    const ProcessOptions options{
        .environment = environment, .folder = folder_.path(), .inherited = {}};
    jobs_.push_back(std::make_unique<Process>(std::move(command), options));
    return *jobs_.back();
  }
  Finished run_job(const Arguments& arguments,
                   std::map<std::string, std::string> environment = {}) {
    Process& job = start(arguments, std::move(environment));
    const int status = job.wait().value_or(-1);
    return Finished{status, job.out(), job.err()};
  }

  // Flags of one node of a job that meets on the loopback interface.
  static Arguments node(int nnodes, int port, const Arguments& more) {
    Arguments arguments{"--nnodes",        std::to_string(nnodes),
                        "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port),
                        "--rdzv-id",       "job"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Everything of the test's jobs that runs.
  std::vector<pid_t> alive() const { return processes_with("DDP_TEST_JOB=" + mark_); }
  std::vector<pid_t> alive(const std::string& name) const {
    std::vector<pid_t> found;
    for (const pid_t pid : alive()) {
      if (process_name(pid) == name) found.push_back(pid);
    }
    return found;
  }
  testing::AssertionResult is_gone() const {
    if (wait_until([this] { return alive().empty(); }, kGoneLimit))
      return testing::AssertionSuccess();
    auto failure = testing::AssertionFailure() << "left:";
    for (const pid_t pid : alive()) failure << " " << process_name(pid) << " (" << pid << ")";
    return failure;
  }

  // Waits until a worker has written this file into the test's folder, and gives its text.
  std::string file(const std::string& name) {
    EXPECT_TRUE(wait_until([&] { return folder_.read(name).ends_with('\n'); }))
        << name << " is not there; the jobs say:\n"
        << said();
    return folder_.read(name);
  }
  // What the jobs have written to standard error so far.
  std::string said() {
    std::string text;
    for (const auto& job : jobs_) text += "---\n" + job->err();
    return text;
  }
  // Never 0, which kill() would take for this whole process group.
  pid_t pid_in(const std::string& name) {
    const pid_t pid = std::atoi(file(name).c_str());
    if (pid <= 1) throw std::runtime_error("no process number in " + name);
    return pid;
  }

  static std::set<std::string> entries(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename());
    return names;
  }

  TempDir folder_;  // The jobs' working folder; $OUT.
  TempDir tmp_;     // Their TMPDIR.
  std::string mark_;
  std::set<std::string> shared_memory_before_;
  std::vector<std::unique_ptr<Process>> jobs_;
};

}  // namespace ddp::test
