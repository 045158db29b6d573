// How ddp-run forwards its workers' output: nothing is lost or mixed, and nobody is blocked.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <fstream>
#include <regex>
#include <sstream>

#include <pty.h>

#include "common/base/unique_fd.h"
#include "common/config/rank_set.h"
#include "tests/process/ddp_run_fixture.h"
#include "tests/process/worker_lines.h"
#include "tests/support/full_matrix.h"
#include "tests/support/sanitizer.h"

namespace ddp::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++found;
  return found;
}

// The largest memory that a process has had, in bytes.
std::size_t peak_memory(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:"))
      return static_cast<std::size_t>(std::atoll(line.c_str() + 6)) * 1'024;
  }
  return 0;
}

class DdpRunOutput : public DdpRunTest {
 protected:
  // ddp-run by way of a shell, which puts it before and after other commands.
  Process& start_shell(const std::string& script, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"sh", "-c", script, bin("ddp-run")});
    const ProcessOptions options{
        .environment = {{"DDP_TEST_JOB", mark_}, {"TMPDIR", tmp_.path()}, {"OUT", folder_.path()}},
        .folder = folder_.path(),
        .inherited = {}};
    jobs_.push_back(std::make_unique<Process>(std::move(arguments), options));
    return *jobs_.back();
  }

  // Each rank's lines as they stand on the console; lines in pieces are joined again.
  static std::map<int, std::string> by_rank(const std::string& text) {
    const std::string begin = "[" + host() + ":";
    std::map<int, std::string> output;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      EXPECT_NE(end, std::string::npos) << "the console ends within a line";
      const std::string_view line = std::string_view(text).substr(at, end - at);
      at = end == std::string::npos ? text.size() : end + 1;
      const std::size_t close = line.find(']');
      if (!line.starts_with(begin) || close == std::string_view::npos) {
        ADD_FAILURE() << "a line of nobody: " << line.substr(0, 200);
        continue;
      }
      const int rank = std::stoi(std::string(line.substr(begin.size(), close - begin.size())));
      const bool continues = line.substr(close).starts_with("]+ ");
      std::string& own = output[rank];
      if (continues && own.ends_with('\n')) own.pop_back();
      own.append(line.substr(close + (continues ? 3 : 2))).push_back('\n');
    }
    return output;
  }

  std::string log(int rank, const std::string& stream) {
    return folder_.read(fmt::format("logs/j/round_0/rank_{}.{}.{}", rank, host(), stream));
  }
};

// The agent's and ddp-run's memory are read while rank 0, having written all, waits for a word.
TEST_F(DdpRunOutput, NothingOf64WorkersIsLostOrMixed) {
  constexpr int kWorkers = 64;
  const int lines = kSlowness == 1 || full_matrix() ? 10'000 : 300;
  const std::string fifo = folder_.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Process& job = start({"--nproc-per-node", std::to_string(kWorkers), "--rdzv-id", "j", "--log-dir",
                        "logs", "--no-python", LINE_WORKER, std::to_string(lines), fifo});
  ASSERT_TRUE(wait_until([&] { return count(job.err(), " has written ") == kWorkers; }, 300s));
  // Whoever writes last has written everything before.
  std::size_t written = 0;
  for (int rank = 0; rank < kWorkers; ++rank) written += worker_output(rank, lines).size();
  ASSERT_TRUE(wait_until([&] { return job.out().size() > written; }, 300s));
  const std::vector<pid_t> agents = alive("ddp-agent");
  ASSERT_EQ(agents.size(), 1U);
  if (kSlowness == 1) {
    EXPECT_LT(peak_memory(job.pid()), 30u << 20);
    EXPECT_LT(peak_memory(agents.front()), 30u << 20);
  }
  // Opened for writing too, so that it does not matter who comes first.
  const UniqueFd word(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  const std::string words(kWorkers, '\n');
  ASSERT_EQ(::write(word.get(), words.data(), words.size()), kWorkers);
  ASSERT_EQ(job.wait(300s), 0) << job.err();

  const auto shown = by_rank(job.out());
  EXPECT_EQ(shown.size(), static_cast<std::size_t>(kWorkers));
  for (const auto& [rank, text] : shown) {
    std::string expected = worker_output(rank, lines);
    EXPECT_TRUE(log(rank, "out") == expected) << "rank " << rank;
    if (ends_without_newline(rank)) expected += '\n';
    EXPECT_TRUE(text == expected) << "rank " << rank;
  }
  for (const auto& [rank, text] : by_rank(job.err())) {
    EXPECT_EQ(text, fmt::format("rank {} has written {} bytes\n", rank,
                                worker_output(rank, lines).size()));
    EXPECT_EQ(text, log(rank, "err"));
  }
}

TEST_F(DdpRunOutput, APipeGetsEverythingToo) {
  constexpr int kWorkers = 8;
  Process& job = start_shell("\"$0\" \"$@\" | cat; sleep 0",
                             {"--nproc-per-node", "8", "--no-python", LINE_WORKER, "3000"});
  ASSERT_EQ(job.wait(120s), 0) << job.err();
  const auto shown = by_rank(job.out());
  EXPECT_EQ(shown.size(), static_cast<std::size_t>(kWorkers));
  for (const auto& [rank, text] : shown) {
    const std::string expected =
        worker_output(rank, 3'000) + (ends_without_newline(rank) ? "\n" : "");
    EXPECT_TRUE(text == expected) << "rank " << rank;
  }
}

TEST_F(DdpRunOutput, WorkersReadWhatIsPipedIntoDdpRun) {
  // As one would run a filter, also after a failure: what is read is read.
  Process& job = start_shell("printf 'one\ntwo\nthree\n' | \"$0\" \"$@\"",
                             {"--max-restarts", "1", "--no-python", "sh", "-c",
                              "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then read line; echo "
                              "\"first $line\"; exit 1; fi; cat"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "first one\ntwo\nthree\n");
  // Nobody's input is the end of the file, and no error.
  Process& without = start_shell("exec \"$0\" \"$@\" <&-", {"--no-python", "cat"});
  EXPECT_EQ(without.wait(), 0) << without.err();
}

// What the event loop opens must not become a standard stream.
TEST_F(DdpRunOutput, AFailedJobEndsWithoutStandardStreams) {
  for (const std::string closed : {"2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    Process& job = start_shell("exec \"$0\" \"$@\" " + closed, {"--no-python", "false"});
    EXPECT_EQ(job.wait(), 1) << closed;
  }
}

TEST_F(DdpRunOutput, RedirectsGoToFilesAndTeesToBoth) {
  const Finished job =
      run_job({"--nproc-per-node", "12", "--rdzv-id", "j", "--log-dir", "logs", "-r", "3", "--tee",
               "0:1,@10-11:2", "sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  ASSERT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(job.out, "[" + host() + ":0] out 0\n");
  EXPECT_EQ(count(job.err, "] err 1"), 2U);
  EXPECT_THAT(job.err, AllOf(HasSubstr(":10] err 10\n"), HasSubstr(":11] err 11\n")));
  for (int rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(log(rank, "out"), "out " + std::to_string(rank) + "\n");
    EXPECT_EQ(log(rank, "err"), "err " + std::to_string(rank) + "\n");
  }
}

// Two starts that nobody has given an id of their own.
TEST_F(DdpRunOutput, FilesOfAnEarlierStartAreKeptAndNotMixedWithTheNewOnes) {
  for (const char* text : {"echo first", "echo second"}) {
    const Finished job =
        run_job({"--rdzv-id", "j", "--log-dir", "logs", "-r", "3", "sh", "-c", text});
    ASSERT_EQ(job.status, 0) << job.err;
  }
  EXPECT_EQ(log(0, "out"), "second\n");
  EXPECT_EQ(log(0, "out.1"), "first\n");
}

TEST_F(DdpRunOutput, OnlyWhatIsAskedForHasAFile) {
  const Finished job = run_job({"--nproc-per-node", "2", "--rdzv-id", "j", "--log-dir", "logs",
                                "-t", "1:2", "sh", "-c", "echo out; echo err >&2"});
  ASSERT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(count(job.out, "out\n"), 2U);
  EXPECT_EQ(count(job.err, "err\n"), 2U);
  EXPECT_EQ(entries(folder_.path() / "logs/j/round_0"),
            std::set<std::string>{"rank_1." + host() + ".err"});
}

TEST_F(DdpRunOutput, FilesWithoutALogDirAreWhereItSays) {
  const Finished job = run_job({"--rdzv-id", "j", "-r", "3", "sh", "-c", "echo hello"});
  ASSERT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(job.out, "");
  EXPECT_THAT(job.err, HasSubstr("ddp-run: the workers' output is in " +
                                 (folder_.path() / "ddp-run-logs/j").string() + "\n"));
  EXPECT_EQ(folder_.read("ddp-run-logs/latest/round_0/rank_0." + host() + ".out"), "hello\n");
}

TEST_F(DdpRunOutput, NoFilesWhereTheyAreDeclined) {
  const Finished job =
      run_job({"-r", "1", "--log-dir", "/dev/null", "sh", "-c", "echo out; echo err >&2; exit 3"});
  EXPECT_EQ(job.status, 3);
  EXPECT_EQ(job.out, "");
  EXPECT_THAT(job.err, AllOf(HasSubstr("err\n"), HasSubstr("| err")));
  EXPECT_THAT(entries(folder_.path()), IsEmpty());
}

TEST_F(DdpRunOutput, FiltersChooseRanksAndLines) {
  const Finished job =
      run_job({"--nproc-per-node", "4", "--rdzv-id", "j", "--log-dir", "logs",
               "--local-ranks-filter", "1", "--ranks-filter", "3", "--duplicate-stdout-filters",
               "loss,a,,b", "sh", "-c", "echo step; echo loss $RANK; echo a,b"});
  ASSERT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(count(job.out, ":1] "), 3U);
  EXPECT_EQ(count(job.out, ":3] "), 3U);
  EXPECT_EQ(count(job.out, "\n"), 6U);
  EXPECT_EQ(log(0, "out"), "step\nloss 0\na,b\n");
  const std::string filtered = folder_.read("logs/j/round_0/node_0/filtered_stdout.log");
  EXPECT_EQ(count(filtered, "\n"), 8U);
  EXPECT_THAT(filtered, AllOf(HasSubstr("[" + host() + ":2] loss 2\n"), Not(HasSubstr("step"))));
}

TEST_F(DdpRunOutput, ThePrefixIsTheUsers) {
  const Finished job =
      run_job({"--nproc-per-node", "2", "--role", "r", "--log-line-prefix-template",
               "${role_name}/${local_rank} of ${hostname}: ", "sh", "-c", "echo x"});
  ASSERT_EQ(job.status, 0) << job.err;
  EXPECT_THAT(job.out, AllOf(HasSubstr("r/0 of " + host() + ": x\n"),
                             HasSubstr("r/1 of " + host() + ": x\n")));
  const Finished torchruns =
      run_job({"sh", "-c", "echo x"},
              {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${rank}]:"}});
  EXPECT_EQ(torchruns.out, "[default0]:x\n");
}

TEST_F(DdpRunOutput, ThePrefixMayBeNone) {
  const Finished job =
      run_job({"--nproc-per-node", "2", "--no-log-prefix", "sh", "-c", "echo x $RANK"});
  EXPECT_THAT(job.out, AnyOf("x 0\nx 1\n", "x 1\nx 0\n"));
}

// As torchrun 2.14.1 does with two nodes of two workers, -r 0:3: the console has ranks 1 and 3.
TEST_F(DdpRunOutput, RanksOfRedirectsAreLocalOnes) {
  const int port = free_port();
  const Arguments flags{"--nproc-per-node", "2",    "--no-log-prefix", "-r", "0:3",
                        "--log-dir",        "logs", "--no-python",     "sh", "-c",
                        "echo out $RANK"};
  Process& first = start(node(2, port, flags));
  Process& second = start(node(2, port, flags));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(first.out() + second.out(), AnyOf("out 1\nout 3\n", "out 3\nout 1\n"));
  EXPECT_EQ(entries(folder_.path() / "logs/job/round_0"),
            (std::set<std::string>{"rank_0." + host() + ".out", "rank_0." + host() + ".err",
                                   "rank_2." + host() + ".out", "rank_2." + host() + ".err"}));
}

// As a terminal that was stopped by Ctrl-S, or a pager that nobody looks at.
TEST_F(DdpRunOutput, AConsoleThatNobodyReadsHoldsNobodyUp) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const std::string out = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(ends[1]);
  Process& job = start_shell("exec \"$0\" \"$@\" > " + out,
                             {"--nproc-per-node", "2", "--rdzv-id", "j", "--log-dir", "logs",
                              "--no-python", LINE_WORKER, "40000"});
  ASSERT_EQ(job.wait(120s), 0) << job.err();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(log(rank, "out") == worker_output(rank, 40'000));
  }
}

TEST_F(DdpRunOutput, WaitingNamesWhoIsThere) {
  const int port = free_port();
  Process& job = start(node(2, port, {"true"}));
  EXPECT_TRUE(job.complains("1 of 2 nodes is in (" + host() + "); 1 missing"));
  // Again after a few seconds, although that is no news.
  EXPECT_TRUE(wait_until([&] { return count(job.err(), "1 of 2 nodes is in") >= 2; }));
  Process& other = start(node(2, port, {"true"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
}

// ddp-run on a terminal of its own.
class DdpRunTerminal : public DdpRunTest {
 protected:
  void TearDown() override {
    if (pid_ > 1) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    DdpRunTest::TearDown();
  }

  void start_on_terminal(Arguments arguments) {
    arguments.insert(arguments.begin(), bin("ddp-run"));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    winsize size{};
    size.ws_row = 24;
    size.ws_col = 100;
    int screen = -1;
    pid_ = ::forkpty(&screen, nullptr, nullptr, &size);
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      ::setenv("DDP_TEST_JOB", mark_.c_str(), 1);
      ::setenv("TMPDIR", tmp_.path().c_str(), 1);
      ::setenv("OUT", folder_.path().c_str(), 1);
      ::setenv("TERM", "xterm", 1);
      if (::chdir(folder_.path().c_str()) == 0) ::execvp(argv[0], argv.data());
      ::_exit(125);
    }
    screen_.reset(screen);
    ::fcntl(screen, F_SETFL, O_NONBLOCK);
  }

  // Reads until the terminal has shown this, or is closed.
  bool shows(const std::string& text) {
    return wait_until([&] {
      char buffer[4'096];
      ssize_t size = 0;
      while ((size = ::read(screen_.get(), buffer, sizeof(buffer))) > 0)
        seen_.append(buffer, static_cast<std::size_t>(size));
      closed_ = size < 0 && errno == EIO;
      return closed_ || (!text.empty() && seen_.find(text) != std::string::npos);
    });
  }
  int end() {
    shows("");
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  pid_t pid_ = -1;
  UniqueFd screen_;
  std::string seen_;
  bool closed_ = false;
};

TEST_F(DdpRunTerminal, TheStatusLineTearsNothing) {
  start_on_terminal({"--nproc-per-node", "2", PARKING_WORKER, "park", "9"});
  ASSERT_TRUE(shows("round 0 | 1 node | 2 workers | step ")) << seen_;
  ASSERT_FALSE(closed_) << seen_;
  ::kill(pid_, SIGTERM);
  EXPECT_EQ(end(), 128 + SIGTERM) << seen_;
  // Without the status lines, each of which is erased, whole lines are left.
  const std::string rest = std::regex_replace(
      seen_, std::regex("round 0 \\| 1 node \\| 2 workers[^\r\n]*\r\x1b\\[K"), "");
  EXPECT_EQ(rest.find('\x1b'), std::string::npos) << rest;
  std::istringstream lines(rest);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with("[" + host() + ":") || line.starts_with("ddp-run: ")) << line;
    EXPECT_TRUE(line.ends_with('\r')) << line;
  }
}

// Of all nodes, which have no terminal of their own.
TEST_F(DdpRunTerminal, TheStatusLineOfHosts) {
  const std::string agent = folder_.script("agent", "shift\nexec \"$@\"\n");
  start_on_terminal({"--hosts", "a,b:2", "--launch-agent", agent, "-x", "TMPDIR", "-x",
                     "DDP_TEST_JOB", PARKING_WORKER, "park", "9"});
  ASSERT_TRUE(shows("round 0 | 2 nodes | 3 workers | step ")) << seen_;
  ::kill(pid_, SIGTERM);
  EXPECT_EQ(end(), 128 + SIGTERM) << seen_;
  const std::string rest = std::regex_replace(
      seen_, std::regex("(waiting for|round 0 \\| 2 nodes)[^\r\n]*\r\x1b\\[K"), "");
  EXPECT_EQ(rest.find('\x1b'), std::string::npos) << rest;
}

// What the lost agent has left on the last line is gone before somebody else writes there.
TEST_F(DdpRunTerminal, ALostAgentsStatusLineIsErased) {
  start_on_terminal({"--nproc-per-node", "2", "sh", "-c", "exec sleep 1000"});
  ASSERT_TRUE(shows("round 0 | 1 node | 2 workers")) << seen_;
  // A worker bears the agent's name until its program has begun.
  ASSERT_TRUE(wait_until([&] { return alive("sleep").size() == 2; }));
  ASSERT_EQ(alive("ddp-agent").size(), 1U);
  ::kill(alive("ddp-agent").front(), SIGKILL);
  EXPECT_NE(end(), 0);
  EXPECT_THAT(seen_, HasSubstr("\r\nround 0 | 1 node | 2 workers\r\x1b[K"));
  EXPECT_THAT(seen_, testing::StartsWith("ddp-run: look at this job at http://127.0.0.1:"));
}

TEST_F(DdpRunTerminal, TheStatusLineCanBeDeclined) {
  start_on_terminal({"--no-status-line", "--nproc-per-node", "2", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(end(), 0);
  EXPECT_EQ(seen_.find('\x1b'), std::string::npos) << seen_;
  EXPECT_EQ(count(seen_, "\r\n"), 2U) << seen_;
}

// Ctrl-S and Ctrl-Q.
TEST_F(DdpRunTerminal, AStoppedTerminalStopsNobody) {
  const std::string fifo = folder_.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  start_on_terminal({"--nproc-per-node", "2", "--log-dir", "logs", "--rdzv-id", "j", "sh", "-c",
                     "read word < $OUT/fifo; seq 1 400000; touch $OUT/through.$RANK; read word < "
                     "$OUT/fifo"});
  const UniqueFd words(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::write(screen_.get(), "\x13", 1), 1);
  ASSERT_EQ(::write(words.get(), "\n\n", 2), 2);
  // Nobody reads the terminal either. It stops the workers for 30 s.
  for (const char* name : {"through.0", "through.1"}) {
    EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(folder_.path() / name); }, 90s));
  }
  ASSERT_EQ(::write(screen_.get(), "\x11", 1), 1);
  EXPECT_TRUE(shows("were left out here"));
  ASSERT_EQ(::write(words.get(), "\n\n", 2), 2);
  EXPECT_EQ(end(), 0);
  EXPECT_THAT(seen_, HasSubstr("output with a log file is in "));
  EXPECT_THAT(folder_.read("logs/j/round_0/rank_1." + host() + ".out"),
              testing::EndsWith("\n400000\n"));
}

}  // namespace
}  // namespace ddp::test
