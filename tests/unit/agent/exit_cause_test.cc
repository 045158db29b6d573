// What an agent finds out about the end of a process.
#include "agent/process/exit_cause.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/process/exception_text.h"
#include "agent/process/log_files.h"
#include "agent/process/memory_kills.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using testing::HasSubstr;

std::string text_of(const std::vector<std::string>& lines) {
  ExceptionText exception;
  for (const std::string& line : lines) exception.add_line(line);
  return exception.text();
}

TEST(ExceptionText, FindsWhatPythonRaised) {
  EXPECT_EQ(text_of({"epoch 1", "Traceback (most recent call last):", "  File \"t.py\", line 1",
                     "    fail()", "ValueError: bad batch", "shutting down"}),
            "ValueError: bad batch");
  EXPECT_EQ(text_of({"Traceback (most recent call last):", "  File \"t.py\", line 1",
                     "KeyError: 'a'", "", "During handling of the above exception, another:", "",
                     "Traceback (most recent call last):", "  File \"t.py\", line 2",
                     "my.package.Problem"}),
            "my.package.Problem");
  EXPECT_EQ(text_of({"[rank0]: Traceback (most recent call last):", "[rank0]:   File \"t.py\"",
                     "[rank0]: RuntimeError: no"}),
            "RuntimeError: no")
      << "as torch prints it";
  EXPECT_EQ(
      text_of({"  File \"t.py\", line 3", "    if:", "       ^", "SyntaxError: invalid syntax"}),
      "SyntaxError: invalid syntax");
}

TEST(ExceptionText, FindsWhatCxxThrew) {
  EXPECT_EQ(text_of({"terminate called after throwing an instance of 'c10::Error'",
                     "  what():  sizes differ", "Exception raised from add", "frame #0: main"}),
            "c10::Error: sizes differ");
  EXPECT_EQ(text_of({"terminate called after throwing an instance of 'int'"}), "int");
  EXPECT_EQ(text_of({"terminate called without an active exception"}),
            "terminate called without an active exception");
  EXPECT_EQ(text_of({"train: a.c:3: main: Assertion `x == 1' failed."}),
            "train: a.c:3: main: Assertion `x == 1' failed.");
}

TEST(ExceptionText, OrdinaryOutputHasNone) {
  EXPECT_EQ(text_of({"loss: 3.5", "Error: none", "what():  nothing"}), "");
  std::vector<std::string> lines{"Traceback (most recent call last):", "  File", "OSError: busy"};
  lines.resize(lines.size() + ExceptionText::kMaxLinesAfter + 1, "step");
  EXPECT_EQ(text_of(lines), "") << "the program went on";
  lines.pop_back();
  EXPECT_EQ(text_of(lines), "OSError: busy");
  EXPECT_LE(text_of({"Traceback (most recent call last):", std::string(100'000, 'x')}).size(),
            ExceptionText::kMaxBytes);
}

TEST(ExitCause, TellsTheKernelsKillsFromOthers) {
  Ending ending{.signal = SIGKILL,
                .memory_is_watched = true,
                .memory_kills = 1,
                .memory_limit = "memory.max of /x is 2.0 GiB"};
  EXPECT_EQ(describe_ending(ending),
            "killed by the kernel: out of memory (memory.max of /x is 2.0 GiB)");
  ending.memory_kills = 0;
  EXPECT_THAT(describe_ending(ending), HasSubstr("another process sent it"));
  ending.memory_is_watched = false;
  EXPECT_EQ(describe_ending(ending), "SIGKILL came from outside ddp-run");
  ending.sent_by_agent = true;
  EXPECT_EQ(describe_ending(ending), "ddp-run sent SIGKILL because the round ended");
}

TEST(ExitCause, NamesWhatAProgramDid) {
  EXPECT_THAT(describe_ending({.signal = SIGSEGV, .core_dumped = true}),
              testing::MatchesRegex("segmentation fault.*; core dumped"));
  EXPECT_THAT(describe_ending({.signal = SIGBUS}), HasSubstr("/dev/shm"));
  EXPECT_EQ(describe_ending({.exit_code = 1}), "");
  EXPECT_EQ(describe_ending({}), "");
  EXPECT_EQ(describe_ending({.exit_code = 137}),
            "the status by which a shell says that signal 9 (SIGKILL) ended a program");
  EXPECT_EQ(describe_ending({.exit_code = 1, .memory_kills = 2, .memory_limit = "limit"}),
            "the kernel killed 2 of this node's processes for lack of memory (limit)");
}

constexpr const char* kMounts =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST(MemoryKills, FindsTheGroup) {
  // Version 1 has the memory where both are mounted.
  const auto both = memory_cgroup("5:cpu:/\n4:memory:/slurm/job_7\n0::/\n", kMounts);
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->folder, "/sys/fs/cgroup/memory/slurm/job_7");
  EXPECT_EQ(both->version, 1);
  // In a container a part of the hierarchy is mounted.
  const auto container = memory_cgroup(
      "0::/pod/box/job\n", "41 31 0:38 /pod/box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  ASSERT_TRUE(container.has_value());
  EXPECT_EQ(container->folder, "/sys/fs/cgroup/job");
  EXPECT_EQ(container->top_folder, "/sys/fs/cgroup");
  EXPECT_EQ(container->version, 2);
  EXPECT_FALSE(memory_cgroup("0::/../other\n", kMounts).has_value());
  EXPECT_FALSE(memory_cgroup("nonsense", kMounts).has_value());
  EXPECT_FALSE(memory_cgroup("0::/x\n", "").has_value());
}

TEST(MemoryKills, CountsWhatIsNew) {
  const test::TempDir dir;
  std::filesystem::create_directory(dir.path() / "job");
  dir.write("memory.max", "1073741824\n");
  dir.write("job/memory.max", "max\n");
  dir.write("job/memory.events", "low 0\noom 3\noom_kill 3\noom_group_kill 0\n");
  MemoryKills kills(MemoryCgroup{dir.path() / "job", dir.path(), 2});
  EXPECT_TRUE(kills.can_tell());
  EXPECT_EQ(kills.unclaimed(), 0);
  dir.write("job/memory.events", "oom 5\noom_kill 5\n");
  EXPECT_EQ(kills.unclaimed(), 2);
  kills.claim(1);
  EXPECT_EQ(kills.unclaimed(), 1);
  kills.claim_all();
  EXPECT_EQ(kills.unclaimed(), 0);
  EXPECT_EQ(kills.limit(), "memory.max of " + dir.path().string() + " is 1.0 GiB");
}

TEST(MemoryKills, VersionOneAndNoGroup) {
  const test::TempDir dir;
  dir.write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  dir.write("memory.limit_in_bytes", "9223372036854771712\n");
  MemoryKills kills(MemoryCgroup{dir.path(), dir.path(), 1});
  dir.write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_EQ(kills.unclaimed(), 1);
  EXPECT_THAT(kills.limit(), HasSubstr("no limit"));
  EXPECT_FALSE(MemoryKills(std::nullopt).can_tell());
  EXPECT_EQ(MemoryKills(std::nullopt).unclaimed(), 0);
  EXPECT_FALSE(MemoryKills(MemoryCgroup{"/no/such", "/no", 2}).can_tell());
}

TEST(ErrorFile, BothFormsOfTorchelastic) {
  const test::TempDir dir;
  const wire::ErrorFile whole = error_in(read_error_file(dir.write(
      "a", R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Trace\nback",
           "timestamp": "1700000000"}, "errorCode": 7}})")));
  EXPECT_EQ(whole.message, "ValueError: no");
  EXPECT_EQ(whole.callstack, "Trace\nback");
  EXPECT_EQ(whole.time_ms, 1'700'000'000'000);
  EXPECT_EQ(whole.exit_code, 7);
  EXPECT_EQ(
      error_in(read_error_file(dir.write("b", R"({"message": "plain", "timestamp": 17})"))).message,
      "plain");
  for (const char* nonsense : {"", "{", "[]", "{}", R"({"message": 3})", R"({"message": {}})",
                               R"({"message": {"message": 3, "extraInfo": []}})"}) {
    EXPECT_EQ(error_in(read_error_file(dir.write("c", nonsense))).message, "") << nonsense;
  }
  EXPECT_EQ(error_in(read_error_file(dir.path() / "missing")).message, "");
  const std::string endless(500'000, 'x');
  EXPECT_EQ(error_in(read_error_file(dir.write("d", "{\"message\": \"" + endless + "\"}")))
                .message.size(),
            16u << 10);
}

config::JobSpec logging_to(const test::TempDir& dir, const std::string& host) {
  config::JobSpec spec;
  spec.log_dir = dir.path();
  spec.job_id = "job";
  spec.host = host;
  return spec;
}

// A new file of each stream.
struct OpenLogs {
  UniqueFd out;
  UniqueFd err;
};
OpenLogs open_logs(const config::JobSpec& spec, Round round, Rank rank) {
  const LogFiles files = log_files_of(spec, round, rank, config::kBothStreams);
  EXPECT_TRUE(clear_old_log_files(files).has_value());
  auto out = open_log_file(files.path_of(config::kStdout));
  auto err = open_log_file(files.path_of(config::kStderr));
  EXPECT_TRUE(out.has_value() && err.has_value());
  return {std::move(*out), std::move(*err)};
}

TEST(LogFiles, CarryTheNode) {
  const test::TempDir dir;
  for (const char* host : {"a", "b.example.org", "pods/c"}) {
    EXPECT_EQ(::write(open_logs(logging_to(dir, host), 0, 7).out.get(), host, 1), 1);
  }
  EXPECT_EQ(dir.read("job/round_0/rank_7.a.out"), "a");
  EXPECT_EQ(dir.read("job/round_0/rank_7.b.example.org.out"), "b");
  EXPECT_EQ(dir.read("job/round_0/rank_7.pods_c.out"), "p");
}

TEST(LogFiles, OfAnEarlierStartAreKeptBesideTheNewOnes) {
  const test::TempDir dir;
  const config::JobSpec spec = logging_to(dir, "n");
  for (const char* text : {"one", "two", "six"}) {
    EXPECT_EQ(::write(open_logs(spec, 0, 1).out.get(), text, 3), 3);
    const auto filtered = open_log_file(filtered_log_path(spec, 0, 0, config::kStdout));
    ASSERT_TRUE(filtered.has_value());
    EXPECT_EQ(::write(filtered->get(), text, 3), 3);
  }
  for (const char* name : {"rank_1.n.out", "node_0/filtered_stdout.log"}) {
    const std::string path = std::string("job/round_0/") + name;
    EXPECT_EQ(dir.read(path), "six");
    EXPECT_EQ(dir.read(path + ".1"), "one");
    EXPECT_EQ(dir.read(path + ".2"), "two");
  }
  // Nothing was said, so nothing is kept.
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "job/round_0/rank_1.n.err.1"));
}

TEST(LogFiles, LinksOfAnEarlierJobLeadNowhereElse) {
  const test::TempDir dir;
  const config::JobSpec spec = logging_to(dir, "n");
  const LogFiles first = log_files_of(spec, 0, 1, config::kBothStreams);
  const LogFiles later = log_files_of(spec, 2, 0, config::kBothStreams);
  EXPECT_EQ(first.base, dir.path() / "job" / "round_0" / "rank_1.n");
  open_logs(spec, 0, 1);
  dir.write("job/round_0/rank_1.n.err", "of round 0\n");
  ASSERT_TRUE(link_log_files(later, first).has_value());
  EXPECT_EQ(dir.read("job/round_2/rank_0.n.err"), "of round 0\n");
  // The same id once more: another process has that place in round 2.
  EXPECT_EQ(::write(open_logs(spec, 2, 0).err.get(), "new\n", 4), 4);
  EXPECT_EQ(dir.read("job/round_0/rank_1.n.err"), "of round 0\n");
  EXPECT_EQ(dir.read("job/round_2/rank_0.n.err"), "new\n");
  // And where a link replaces a file, the file is kept.
  ASSERT_TRUE(link_log_files(later, first).has_value());
  EXPECT_EQ(dir.read("job/round_2/rank_0.n.err"), "of round 0\n");
  EXPECT_EQ(dir.read("job/round_2/rank_0.n.err.1"), "new\n");
}

TEST(ExitCause, APyTorchWithoutLibuvHasARemedy) {
  Ending ending{.exit_code = 1};
  ending.message =
      "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without "
      "libuv support, run with USE_LIBUV=0 to disable it.";
  EXPECT_THAT(describe_ending(ending),
              testing::HasSubstr("export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 USE_LIBUV=0"));
}

TEST(ExitCause, AForgottenImportIsNamed) {
  for (const char* message : {"AssertionError: Unknown backend type ddp",
                              "RuntimeError: Unknown c10d backend type DDP"}) {
    EXPECT_THAT(describe_ending({.exit_code = 1, .message = message}),
                HasSubstr("write `import ddp_run` before init_process_group()"));
  }
}

}  // namespace
}  // namespace ddp::agent
