// ddp-run --hosts: over a real sshd, and over other launch agents.
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "tests/process/ddp_run_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/sshd.h"

namespace ddp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Of a child of `parent` with this name; 0 if there is none.
pid_t child_of(pid_t parent, const std::string& name, const std::string& argument = "") {
  const std::string children = read_proc(parent, "task/" + std::to_string(parent) + "/children");
  std::istringstream pids(children);
  for (pid_t pid = 0; pids >> pid;) {
    const bool fits =
        argument.empty() || read_proc(pid, "cmdline").find(argument) != std::string::npos;
    if (process_name(pid) == name && fits) return pid;
  }
  return 0;
}

class DdpRunHosts : public DdpRunTest {
 protected:
  // What nodes need to know of the test, since ssh passes nothing on.
  Arguments on(const std::string& hosts, const Arguments& more) {
    Arguments arguments{"--hosts", hosts, "-x", "OUT", "-x", "TMPDIR", "--shutdown-timeout", "5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static Arguments shell(const std::string& script, const Arguments& more = {}) {
    Arguments arguments{"--no-python", "sh", "-c", script};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string read(const std::string& name) const { return folder_.read(name); }
};

class DdpRunSsh : public DdpRunHosts {
 protected:
  DdpRunSsh() : sshd_("DDP_TEST_JOB=" + mark_) {}

  std::map<std::string, std::string> with_ssh() const { return {{"PATH", sshd_.search_path()}}; }
  Process& start_on(const std::string& hosts, const Arguments& more) {
    return start(on(hosts, more), with_ssh());
  }
  Finished run_on(const std::string& hosts, const Arguments& more) {
    return run_job(on(hosts, more), with_ssh());
  }
  // Two workers that run until they are stopped.
  Process& start_sleepers(const Arguments& flags = {}) {
    Arguments more = flags;
    const Arguments program = shell("echo up > $OUT/up.$RANK; exec sleep 600");
    more.insert(more.end(), program.begin(), program.end());
    Process& job = start_on("hosta,hostb", more);
    file("up.0");
    file("up.1");
    return job;
  }

  Sshd sshd_;
};

TEST_F(DdpRunSsh, TwoHostsAreOneWorld) {
  const Finished done =
      run_on("hosta,hostb:2", shell("echo $RANK of $WORLD_SIZE, node $GROUP_RANK in $PWD, "
                                    "ssh to $(echo $SSH_CONNECTION | cut -d' ' -f3) > $OUT/$RANK; "
                                    "echo hello from $RANK"));
  EXPECT_EQ(done.status, 0) << done.err << sshd_.log();
  const std::string rest = " in " + folder_.path().string() + ", ssh to 127.0.0.";
  EXPECT_EQ(read("0"), "0 of 3, node 0" + rest + "2\n");
  EXPECT_EQ(read("1"), "1 of 3, node 1" + rest + "3\n");
  EXPECT_EQ(read("2"), "2 of 3, node 1" + rest + "3\n");
  EXPECT_THAT(done.out, AllOf(HasSubstr("[hosta:0]"), HasSubstr("[hostb:2]")));
  EXPECT_EQ(std::count(done.out.begin(), done.out.end(), '\n'), 3) << done.out;
}

// Such as a progress bar's, which ends with the epoch.
TEST_F(DdpRunSsh, TheOnlyWorkersUnfinishedLineIsShown) {
  Process& job = start_on(
      "hosta", shell("printf '10%%\\r20%%\\r' >&2; until [ -e $OUT/go ]; do sleep 0.02; done"));
  EXPECT_TRUE(job.complains("20%"));
  folder_.write("go", "");
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST_F(DdpRunSsh, ArgumentsAndVariablesArriveByteForByte) {
  const std::string odd = "it's \"two\" $HOME `id` words\nand a line \\ \xC3\xA4*?";
  Arguments arguments{"-x", "ODD=" + odd, "-x", "EMPTY="};
  const Arguments program =
      shell(R"(printf %s "$1$2$ODD$EMPTY" > $OUT/odd.$RANK)", {"x", odd, " "});
  arguments.insert(arguments.end(), program.begin(), program.end());
  const Finished done = run_on("hosta,hostb", arguments);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(read("odd.0"), odd + " " + odd);
  EXPECT_EQ(read("odd.1"), odd + " " + odd);
}

TEST_F(DdpRunSsh, TheStatusIsTheFailedWorkersAndThereIsOneReport) {
  const Finished done = run_on(
      "hosta,hostb", shell("if [ $RANK = 1 ]; then echo it broke >&2; exit 7; fi; exec sleep 600"));
  EXPECT_EQ(done.status, 7);
  EXPECT_THAT(done.err, HasSubstr("hostb"));
  const std::size_t first = done.err.find("Root Cause");
  EXPECT_NE(first, std::string::npos) << done.err;
  EXPECT_EQ(done.err.find("Root Cause", first + 1), std::string::npos) << done.err;
}

TEST_F(DdpRunSsh, AHostThatCannotBeReachedIsNamedAndTheOthersEnd) {
  const Finished done = run_on("hosta,gone", shell("exec sleep 600"));
  EXPECT_EQ(done.status, 67);
  EXPECT_THAT(done.err, HasSubstr("host gone cannot be reached: ssh ended with status 255: ssh: "
                                  "connect to host 127.0.0.4 port " +
                                  std::to_string(sshd_.port()) + ": Connection refused"));
}

TEST_F(DdpRunSsh, TheJobGoesOnWithoutAHostThatItDoesNotNeed) {
  Arguments more{"--nnodes", "1:2", "--last-call", "0"};
  const Arguments program =
      shell("until [ -e $OUT/go ]; do sleep 0.02; done; echo $WORLD_SIZE > $OUT/world");
  more.insert(more.end(), program.begin(), program.end());
  Process& job = start_on("hosta,gone", more);
  EXPECT_TRUE(job.complains("going on with 1 of 2 hosts (--nnodes 1:2)"));
  folder_.write("go", "");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(read("world"), "1\n");
  EXPECT_THAT(job.err(), HasSubstr("host gone cannot be reached"));
}

TEST_F(DdpRunSsh, AWrongKeyIsNamed) {
  const Finished done = run_on("stranger", shell("true"));
  EXPECT_EQ(done.status, 67);
  EXPECT_THAT(done.err, AllOf(HasSubstr("host stranger cannot be reached"),
                              HasSubstr("Permission denied (publickey)"),
                              HasSubstr("`ssh stranger true` must work")));
}

TEST_F(DdpRunSsh, AProgramThatIsNotThere) {
  const Finished done = run_on("hosta,hostb", {"--no-python", "/no/such/program"});
  EXPECT_EQ(done.status, 127);
  EXPECT_THAT(done.err, HasSubstr("/no/such/program: there is no such program"));
}

TEST_F(DdpRunSsh, OneCtrlCEndsAll) {
  Process& job = start_sleepers();
  job.kill(SIGINT);
  EXPECT_EQ(job.wait(), 130) << job.err();
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunSsh, TheKilledLauncherTakesAllWithIt) {
  Process& job = start_sleepers();
  job.kill(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunSsh, AKilledSshEndsItsSide) {
  Process& job = start_sleepers();
  const pid_t ssh = child_of(job.pid(), "ssh", "hostb");
  ASSERT_GT(ssh, 1);
  ::kill(ssh, SIGKILL);
  EXPECT_EQ(job.wait(), 72) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("host hostb was lost: ssh was ended by signal 9 (SIGKILL)"),
                    HasSubstr("1 of 2 hosts left, and --nnodes wants 2. Start")));
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunSsh, AHostThatIsLostCanBeDoneWithout) {
  Process& job = start_on("hosta,hostb", [] {
    Arguments arguments{"--nnodes", "1:2", "--max-restarts", "1"};
    const Arguments program =
        shell("echo up > $OUT/up.$RANK; [ $WORLD_SIZE = 1 ] || exec sleep 600");
    arguments.insert(arguments.end(), program.begin(), program.end());
    return arguments;
  }());
  file("up.0");
  file("up.1");
  ::kill(child_of(job.pid(), "ssh", "hostb"), SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("host hostb was lost"), HasSubstr("going on with 1 of 2")));
  EXPECT_TRUE(is_gone());
}

// ---- other launch agents ----

class DdpRunLaunchAgent : public DdpRunHosts {
 protected:
  // A launch agent that runs the program here and writes down who has called it for which host.
  std::string agent(const std::string& before = "") {
    return folder_.script("agent", "host=$1\nshift\necho $host $PPID >> " +
                                       (folder_.path() / "started").string() + "\n" + before +
                                       "\nexec \"$@\"\n");
  }
  static std::string many(int count) {
    std::string hosts;
    for (int i = 0; i < count; ++i) hosts += (i == 0 ? "n" : ",n") + std::to_string(i);
    return hosts;
  }
  Arguments by(const std::string& agent, const Arguments& more) {
    Arguments arguments{"--launch-agent", agent};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Host to process number of who started it.
  std::map<std::string, pid_t> starters() const {
    std::map<std::string, pid_t> found;
    std::istringstream lines(read("started"));
    std::string host;
    for (pid_t pid = 0; lines >> host >> pid;) found[host] = pid;
    return found;
  }
};

TEST_F(DdpRunLaunchAgent, TakesTheHostWhereTheTemplateHasIt) {
  const Finished done = run_job(on("a,b", by(agent("[ \"$1\" = -- ] && shift") + " {host} --",
                                             shell("echo $RANK $GROUP_RANK > $OUT/$RANK"))));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(read("0"), "0 0\n");
  EXPECT_EQ(read("1"), "1 1\n");
  EXPECT_EQ(starters().size(), 2u);
}

TEST_F(DdpRunLaunchAgent, ABatchScriptsHostsAreTheSchedulers) {
  const std::string file = folder_.write("nodes", "a\na\nb\na\n");
  const std::map<std::string, std::string> pbs{
      {"PBS_JOBID", "7.head"}, {"PBS_NODEFILE", file}, {"PBS_NODENUM", "0"}, {"PBS_TASKNUM", "1"}};
  const std::map<std::string, std::string> lsf{{"LSB_JOBID", "7.head"},
                                               {"LSB_DJOB_HOSTFILE", file}};
  for (const auto& environment : {pbs, lsf}) {
    const Finished done =
        run_job(by(agent(), {"-x", "OUT", "-x", "TMPDIR", "--no-python", "sh", "-c",
                             "echo $RANK of $WORLD_SIZE in $TORCHELASTIC_RUN_ID > $OUT/$RANK"}),
                environment);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_EQ(read("0"), "0 of 2 in 7.head\n");
    EXPECT_EQ(read("1"), "1 of 2 in 7.head\n");
    EXPECT_EQ(starters().size(), 2u);
    for (const char* name : {"0", "1", "started"}) std::filesystem::remove(folder_.path() / name);
  }
}

TEST_F(DdpRunLaunchAgent, ASchedulerHasNoSayInNodesOfHosts) {
  // As with kubectl exec into the pods of an Indexed Job, or with mpirun on every host.
  const Finished done = run_job(on("a,b", by(agent("export JOB_COMPLETION_INDEX=3 PMI_RANK=3 "
                                                   "PMI_SIZE=4 FLUX_TASK_RANK=3"),
                                             shell("echo $RANK of $WORLD_SIZE > $OUT/$RANK"))),
                                {{"JOB_COMPLETION_INDEX", "3"}});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(read("0"), "0 of 2\n");
  EXPECT_EQ(read("1"), "1 of 2\n");
}

TEST_F(DdpRunLaunchAgent, WhatALoginPrintsIsPassedOn) {
  const Finished done =
      run_job(on("a", by(agent("printf 'welcome to a'; echo be careful >&2"), shell("echo x"))));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, testing::StartsWith("welcome to a\n"));
  EXPECT_THAT(done.err, HasSubstr("be careful"));
}

TEST_F(DdpRunLaunchAgent, OneThatFailsIsNamedWithWhatItSaid) {
  const Finished done =
      run_job(on("a,b", by(agent("[ $host = a ] || { echo no pod b >&2; exit 9; }"),
                           shell("exec sleep 600"))));
  EXPECT_EQ(done.status, 67);
  EXPECT_THAT(done.err, HasSubstr("host b cannot be reached: agent ended with status 9: no pod b"));
}

TEST_F(DdpRunLaunchAgent, OneThatDoesNotExist) {
  const Finished done = run_job(on("a", by("/no/agent", shell("true"))));
  EXPECT_EQ(done.status, 67);
  EXPECT_THAT(done.err, HasSubstr("/no/agent cannot be started: No such file"));
}

TEST_F(DdpRunLaunchAgent, OneThatHangsIsGivenUp) {
  const Finished done =
      run_job(on("a", by(agent("exec sleep 600"), {"--join-timeout", "1", "--no-python", "true"})));
  EXPECT_EQ(done.status, 67);
  EXPECT_THAT(done.err, HasSubstr("ddp-run did not start there within 1 s (--join-timeout)"));
}

// Whatever it is named: one that ends jobs otherwise, one that nobody handles, a real-time one.
TEST_F(DdpRunLaunchAgent, TheCheckpointSignalAsksAllHostsAndEndsNothing) {
  for (const int signal : {SIGHUP, SIGALRM, SIGRTMIN + 1}) {
    Process& job = start(on("a,b", by(agent(), {"--checkpoint-signal", std::to_string(signal),
                                                PARKING_WORKER, "park", "1"})));
    for (const char* rank : {"0", "1"})
      ASSERT_TRUE(job.prints("round 0 rank " + std::string(rank))) << job.err();
    for (const char* number : {"1", "2", "3"}) {
      job.kill(signal);
      for (const char* rank : {"0", "1"}) {
        ASSERT_TRUE(job.prints(fmt::format("rank {} is asked for checkpoint {}", rank, number)))
            << signal << ": " << job.err();
      }
    }
    job.kill(SIGTERM);
    EXPECT_EQ(job.wait(), 143) << job.err();
  }
}

// A node that is told so by SIGHUP would take it for a request.
TEST_F(DdpRunLaunchAgent, NodesEndWithALauncherWhoseHangUpAsksForCheckpoints) {
  Process& job = start(on("a,b", by(agent(), {"--checkpoint-signal", "HUP", "--no-python", "sh",
                                              "-c", "echo up > $OUT/up.$RANK; exec sleep 600"})));
  file("up.0");
  file("up.1");
  job.kill(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(is_gone());
}

// b starts once there is a file "go".
TEST_F(DdpRunLaunchAgent, TheCheckpointSignalGivesUpNoHostThatIsNotReachedYet) {
  Process& job =
      start(on("a,b", by(agent("until [ $host = a ] || [ -e $OUT/go ]; do sleep 0.02; done"),
                         {"--nnodes", "1:2", "--last-call", "0", "--checkpoint-signal", "USR2",
                          PARKING_WORKER, "commit", "1"})));
  ASSERT_TRUE(job.prints("round 0 rank 0 of 1")) << job.err();
  job.kill(SIGUSR2);
  ASSERT_TRUE(job.prints("rank 0 is asked for checkpoint 1")) << job.err();
  folder_.write("go", "");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("round 1 rank 1 of 2"));
}

// Under the default it would ask for a checkpoint.
TEST_F(DdpRunLaunchAgent, AnEndingSignalGivesUpHostsThatAreNotReachedYet) {
  Process& job = start(on("a,b", by(agent("[ $host = a ] || exec sleep 600"),
                                    {"--nnodes", "1:2", "--last-call", "0", "--signals-to-handle",
                                     "TERM,USR1", PARKING_WORKER, "park", "1"})));
  ASSERT_TRUE(job.prints("round 0 rank 0 of 1")) << job.err();
  job.kill(SIGUSR1);
  EXPECT_EQ(job.wait(), 128 + SIGUSR1) << job.err();
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunLaunchAgent, FortyHostsAreStartedAsATree) {
  const Finished done =
      run_job(on(many(40), by(agent(), shell("echo $WORLD_SIZE $GROUP_RANK > $OUT/$RANK"))));
  EXPECT_EQ(done.status, 0) << done.err;
  for (int rank = 0; rank < 40; ++rank) {
    EXPECT_EQ(read(std::to_string(rank)), "40 " + std::to_string(rank) + "\n");
  }
  std::map<pid_t, int> started;
  for (const auto& [host, starter] : starters()) ++started[starter];
  EXPECT_EQ(starters().size(), 40u);
  EXPECT_EQ(started.size(), 9u) << "the launcher and eight hosts with two places";
  int most = 0;
  for (const auto& [starter, count] : started) most = std::max(most, count);
  EXPECT_EQ(most, 32);
}

// n0 starts n1, and would start its own localhost.
TEST_F(DdpRunHosts, LocalhostIsTheLaunchersInATree) {
  std::filesystem::create_directory(folder_.path() / "path");
  folder_.script("path/ssh",
                 "while [ $# -gt 2 ]; do shift; done\nexport BY_SSH=$1\nexec sh -c \"$2\"\n");
  std::string hosts = "n0,localhost";
  for (int i = 1; i < 34; ++i) hosts += ",n" + std::to_string(i);
  const Finished done =
      run_job(on(hosts, shell("echo $BY_SSH > $OUT/$RANK")),
              {{"PATH", (folder_.path() / "path").string() + ":" + std::getenv("PATH")}});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(read("0"), "n0\n");
  EXPECT_EQ(read("1"), "\n");
  EXPECT_EQ(read("2"), "n1\n");
}

TEST_F(DdpRunLaunchAgent, ATreeEndsWithOneSignal) {
  Process& job = start(on(many(34), by(agent(), shell("echo up > $OUT/up.$RANK; exec sleep 600"))));
  for (int rank = 0; rank < 34; ++rank) file("up." + std::to_string(rank));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunLaunchAgent, AnotherHostTakesThePlaceOfOneThatWasToStartOthers) {
  // n0 was to start n1.
  Arguments arguments = by(agent("[ $host != n0 ] || { echo down >&2; exit 1; }"),
                           {"--nnodes", "32:33", "--last-call", "0"});
  const Arguments program = shell("echo up > $OUT/up.$RANK");
  arguments.insert(arguments.end(), program.begin(), program.end());
  const Finished done = run_job(on(many(33), arguments));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("host n0 cannot be reached: agent ended with status 1: down"));
  EXPECT_TRUE(starters().contains("n1"));
}

TEST_F(DdpRunLaunchAgent, LinesOfAllHostsStayWhole) {
  constexpr int kHosts = 4, kLines = 500;
  const Finished done = run_job(on(
      many(kHosts),
      by(agent(), shell(R"(i=0; pad=$(printf '%3000s' '' | tr ' ' $RANK))"
                        R"(; while [ $i -lt 500 ]; do echo "<$RANK $i $pad>"; i=$((i + 1)); done)"
                        R"(; printf '<%s last>' $RANK)"))));
  EXPECT_EQ(done.status, 0) << done.err;
  std::map<char, int> next;
  std::istringstream lines(done.out);
  int last = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find('<');
    ASSERT_NE(begin, std::string::npos) << line.substr(0, 100);
    const char rank = line[begin + 1];
    if (line.ends_with(" last>")) {
      ++last;
      continue;
    }
    const std::string expected = "<" + std::string(1, rank) + " " + std::to_string(next[rank]++) +
                                 " " + std::string(3'000, rank) + ">";
    ASSERT_EQ(line.substr(begin), expected);
  }
  EXPECT_EQ(last, kHosts);
  for (int rank = 0; rank < kHosts; ++rank) EXPECT_EQ(next[static_cast<char>('0' + rank)], kLines);
}

TEST_F(DdpRunLaunchAgent, HostsMeetUnderTls) {
  Authority authority;
  authority.issue("here", "IP:127.0.0.1");
  authority.issue("elsewhere", "DNS:node1");
  const auto with = [&](const std::string& name) {
    Arguments more{"--local-addr", "127.0.0.1",         "--tls-cert", authority.certificate(name),
                   "--tls-key",    authority.key(name), "--tls-ca",   authority.ca()};
    const Arguments program = shell("echo $RANK of $WORLD_SIZE > $OUT/$RANK");
    more.insert(more.end(), program.begin(), program.end());
    return run_job(on("a,b", by(agent(), more)));
  };
  const Finished wrong = with("elsewhere");
  EXPECT_EQ(wrong.status, kExitRefused) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("mismatch (expected: 127.0.0.1)"));
  const Finished done = with("here");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(read("1"), "1 of 2\n");
}

class DdpRunHostsElsewhere : public DdpRunLaunchAgent {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.prints("listening on 127.0.0.1:")) << daemon_.err(); }
  // For hosts a and b, of which one is enough, and a rendezvous that is not the launcher's.
  Finished run_with(const std::string& agent, const std::string& script,
                    const std::string& last_call = "30") {
    const std::string line = daemon_.out();
    const std::string port = line.substr(line.find("127.0.0.1:") + 10);
    Arguments more{
        "--nnodes",        "1:2",
        "--rdzv-endpoint", "127.0.0.1:" + port.substr(0, port.find_first_not_of("0123456789")),
        "--rdzv-id",       "job",
        "--rdzv-conf",     "is_host=0",
        "--last-call",     last_call};
    const Arguments program = shell(script);
    more.insert(more.end(), program.begin(), program.end());
    return run_job(on("a,b", by(agent, more)), token_);
  }
  const std::map<std::string, std::string> token_{{"DDP_RDZV_TOKEN", std::string(32, 'a')}};
  Process daemon_{{bin("ddp-rendezvous"), "--bind", "127.0.0.1", "--port", "0"},
                  {.environment = token_, .folder = ""}};
};

// b lacks the program. a's worker ends when the launcher has seen that.
TEST_F(DdpRunHostsElsewhere, TheJobsSuccessCountsNotThatOfAHostItDidWithout) {
  const Finished done =
      run_with(agent("[ $host = a ] || { echo $$ > $OUT/b; export PATH=/none; }"),
               "until [ -s $OUT/b ] && ! kill -0 $(cat $OUT/b) 2>&-; do sleep 0.02; done", "0");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("host b: "), HasSubstr("the job goes on without it")));
}

TEST_F(DdpRunHostsElsewhere, AJobThatIsOverDoesNotGoOn) {
  const Finished done = run_with(
      agent(), "[ $WORLD_SIZE = 2 ] || exec sleep 600; [ $RANK = 0 ] && exec sleep 600; exit 7");
  EXPECT_EQ(done.status, 7);
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("Root Cause"), Not(HasSubstr("on with")), Not(HasSubstr("goes on"))));
}

TEST_F(DdpRunHosts, ThisMachineNeedsNoLaunchAgent) {
  const Finished done = run_job(on("localhost:2", shell("echo $WORLD_SIZE > $OUT/$RANK")));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(read("1"), "2\n");
}

}  // namespace
}  // namespace ddp::test
