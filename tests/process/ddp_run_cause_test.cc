#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/process/ddp_run_fixture.h"
#include "tests/support/sanitizer.h"

namespace ddp::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// What the report says of why a worker ended (row 27: "exitcode -9" and no cause).
class DdpRunCause : public DdpRunTest {
 protected:
  nlohmann::json json_file(const std::string& name) {
    return nlohmann::json::parse(folder_.read(name), nullptr, false);
  }
};

// A control group of its own, in whichever version this machine has.
class MemoryGroup {
 public:
  explicit MemoryGroup(const std::string& limit) {
    std::ifstream groups("/proc/self/cgroup");
    std::string path;
    for (std::string line; std::getline(groups, line);) {
      const auto memory = line.find(":memory:");
      if (memory != std::string::npos) path = "/sys/fs/cgroup/memory" + line.substr(memory + 8);
      if (path.empty() && line.starts_with("0::")) path = "/sys/fs/cgroup" + line.substr(3);
    }
    folder_ = path + "/ddp-test-" + std::to_string(::getpid());
    if (::mkdir(folder_.c_str(), 0755) != 0) return;
    for (const char* name : {"memory.limit_in_bytes", "memory.max"}) {
      if (std::filesystem::exists(folder_ + "/" + name))
        usable_ = static_cast<bool>(std::ofstream(folder_ + "/" + name) << limit << std::flush);
    }
  }
  ~MemoryGroup() { ::rmdir(folder_.c_str()); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool usable() const { return usable_; }
  const std::string& folder() const { return folder_; }
  std::string processes() const { return folder_ + "/cgroup.procs"; }

 private:
  std::string folder_;
  bool usable_ = false;
};

TEST_F(DdpRunCause, AKillForLackOfMemoryIsNamedWithItsLimit) {
  if (kSanitized) GTEST_SKIP() << "ddp-run itself takes more than 50 MB then";
  const MemoryGroup group("50M");
  if (!group.usable()) GTEST_SKIP() << "no control group can be made: " << group.folder();
  // The shell enters the group and becomes ddp-run; the worker takes more than there is.
  const std::string inner = bin("ddp-run") +
                            " python3 -c 'x = bytearray(200 << 20)\n"
                            "import time\ntime.sleep(1000)'";
  Process job({"sh", "-c", "echo $$ > " + group.processes() + " && exec " + inner},
              {.environment = {{"DDP_TEST_JOB", mark_}, {"TMPDIR", tmp_.path()}}, .folder = {}});
  EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("cause     : killed by the kernel: out of memory (memory."));
  EXPECT_THAT(job.err(), HasSubstr(group.folder() + " is 50.0 MiB)"));
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunCause, AKillByAnotherProcessIsNotTakenForTheKernels) {
  const Finished job = run_job({"sh", "-c", "kill -KILL ${$}"});
  EXPECT_THAT(job.err, ContainsRegex("cause     : SIGKILL came .*outside|another process"));
  EXPECT_THAT(job.err, Not(HasSubstr("out of memory")));
}

TEST_F(DdpRunCause, ASegmentationFaultIsNamed) {
  const Finished job = run_job({"sh", "-c", "kill -SEGV ${$}"});
  EXPECT_EQ(job.status, 128 + SIGSEGV);
  EXPECT_THAT(job.err, HasSubstr("cause     : segmentation fault"));
}

TEST_F(DdpRunCause, AnExceptionIsFoundInTheOutput) {
  const Finished job = run_job({"--nproc-per-node", "1", "sh", "-c",
                                "echo \"terminate called after throwing an instance of "
                                "'c10::Error'\" >&2; echo '  what():  sizes differ' >&2; "
                                "seq 100 >&2; kill -ABRT ${$}"});
  EXPECT_EQ(job.status, 128 + SIGABRT);
  EXPECT_THAT(job.err, HasSubstr("message   : c10::Error: sizes differ\n"));
}

TEST_F(DdpRunCause, AnErrorFileIsReadWithoutALogFolder) {
  const Finished job =
      run_job({"sh", "-c",
               "printf %s '{\"message\": {\"message\": \"ValueError: bad batch\", \"extraInfo\": "
               "{\"py_callstack\": \"Traceback\\nline 7\", \"timestamp\": \"1\"}}}' "
               "> $TORCHELASTIC_ERROR_FILE; exit 4"});
  EXPECT_EQ(job.status, 4);
  EXPECT_THAT(job.err, HasSubstr("message   : ValueError: bad batch\n"));
  EXPECT_THAT(job.err, HasSubstr("    | Traceback\n    | line 7\n"));
}

// Rank 1 has failed five seconds ago and is still exiting when rank 0 fails.
TEST_F(DdpRunCause, AWorkerThatFailedFirstIsTheCauseThoughItEndsLast) {
  const std::string fifo = folder_.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Finished job =
      run_job({"--nproc-per-node", "2", "sh", "-c",
               "[ $RANK = 0 ] && { read line < " + fifo + "; exit 7; }; " +
                   "printf '{\"message\": {\"message\": \"ValueError: first\", \"extraInfo\": " +
                   "{\"py_callstack\": \"Traceback\", \"timestamp\": \"%d\"}}}' " +
                   "$(($(date +%s) - 5)) > $TORCHELASTIC_ERROR_FILE; " + "echo > " + fifo +
                   "; exec sleep 1000"},
              {{"TORCHELASTIC_ERROR_FILE", folder_.path() / "above.json"}});
  EXPECT_EQ(job.status, 1) << "not SIGTERM's, which came from ddp-run";
  EXPECT_THAT(job.err, ContainsRegex("\\[1\\]: rank 0 on .* failed: exit code 7"));
  EXPECT_THAT(job.err, HasSubstr("rank      : 1 (local_rank: 1)"));
  EXPECT_THAT(job.err, HasSubstr("still exiting when the round was stopped"));
  EXPECT_THAT(job.err, HasSubstr("message   : ValueError: first\n"));
  EXPECT_EQ(json_file("above.json")["message"]["message"], "ValueError: first");
}

TEST_F(DdpRunCause, TheRootCauseGoesToALauncherAbove) {
  const Finished inner =
      run_job({"--nproc-per-node", "2", "sh", "-c",
               "[ $RANK = 0 ] && exec sleep 100; "
               "echo '{\"message\": \"plain text\"}' > $TORCHELASTIC_ERROR_FILE; exit 5"},
              {{"TORCHELASTIC_ERROR_FILE", folder_.path() / "above.json"}});
  EXPECT_EQ(inner.status, 5);
  const auto json = json_file("above.json");
  ASSERT_TRUE(json.is_object()) << folder_.read("above.json");
  EXPECT_EQ(json["message"]["message"], "plain text");
  EXPECT_EQ(json["message"]["errorCode"], 5);
  EXPECT_GT(std::stol(json["message"]["extraInfo"]["timestamp"].get<std::string>()), 1'600'000'000);
  EXPECT_EQ(json["message"]["extraInfo"]["py_callstack"], "plain text") << "null ends a torchrun";
}

TEST_F(DdpRunCause, ALauncherAboveReportsTheInnerOnesCause) {
  const Finished outer =
      run_job({bin("ddp-run"), "sh", "-c",
               "echo 'RuntimeError: inner' >&2; "
               "echo '{\"message\": \"RuntimeError: inner\"}' > $TORCHELASTIC_ERROR_FILE; exit 6"});
  EXPECT_EQ(outer.status, 6);
  // Twice: the inner report and the outer one.
  const auto first = outer.err.find("message   : RuntimeError: inner");
  ASSERT_NE(first, std::string::npos) << outer.err;
  EXPECT_NE(outer.err.find("message   : RuntimeError: inner", first + 1), std::string::npos);
}

TEST_F(DdpRunCause, TheReportIsHeadedByTheProgram) {
  const std::string script = folder_.script("train.sh", "exit 3\n");
  const Finished job = run_job({"--rdzv-id", "a-job", script});
  EXPECT_THAT(job.err, HasSubstr("\n" + script + " FAILED\n"));
}

}  // namespace
}  // namespace ddp::test
