#include <algorithm>
#include <sstream>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class DdpRunJob : public DdpRunTest {
 protected:
  // What worker `rank` found in its environment, from a script that writes it down.
  std::map<std::string, std::string> environment_of(int rank) {
    std::istringstream text(file("env." + std::to_string(rank)));
    std::map<std::string, std::string> variables;
    for (std::string line; std::getline(text, line);) {
      const auto equals = line.find('=');
      if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
    }
    return variables;
  }
  // env is a program of its own, so that the file is there only when it is whole.
  std::string environment_script() {
    return folder_.script("env.sh", "env > $OUT/tmp.$RANK && mv $OUT/tmp.$RANK $OUT/env.$RANK\n");
  }
};

TEST_F(DdpRunJob, WorkersGetTorchrunsEnvironment) {
  const Finished job = run_job({"--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
                                "--role", "trainer", "--rdzv-id", "job7", environment_script()},
                               {{"OMP_NUM_THREADS", "5"}, {"MINE", "kept"}});
  ASSERT_EQ(job.status, 0) << job.err;
  for (int rank = 0; rank < 2; ++rank) {
    auto env = environment_of(rank);
    EXPECT_EQ(env["RANK"], std::to_string(rank));
    EXPECT_EQ(env["LOCAL_RANK"], std::to_string(rank));
    EXPECT_EQ(env["WORLD_SIZE"], "2");
    EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(env["GROUP_RANK"], "0");
    EXPECT_EQ(env["GROUP_WORLD_SIZE"], "1");
    EXPECT_EQ(env["ROLE_NAME"], "trainer");
    EXPECT_EQ(env["ROLE_RANK"], std::to_string(rank));
    EXPECT_EQ(env["ROLE_WORLD_SIZE"], "2");
    EXPECT_EQ(env["MASTER_ADDR"], "127.0.0.1");
    EXPECT_GT(std::atoi(env["MASTER_PORT"].c_str()), 0);
    EXPECT_EQ(env["TORCHELASTIC_RESTART_COUNT"], "0");
    EXPECT_EQ(env["TORCHELASTIC_MAX_RESTARTS"], "3");
    EXPECT_EQ(env["TORCHELASTIC_RUN_ID"], "job7");
    EXPECT_EQ(env["TORCHELASTIC_USE_AGENT_STORE"], "True");
    EXPECT_EQ(env["OMP_NUM_THREADS"], "5");
    EXPECT_EQ(env["MINE"], "kept");
    EXPECT_EQ(env["DDP_ROUND"], "0");
  }
  EXPECT_EQ(environment_of(0)["MASTER_PORT"], environment_of(1)["MASTER_PORT"]);
}

// A file's name may be any bytes, and so may arguments.
TEST_F(DdpRunJob, ArgumentsNeedNotBeUtf8) {
  const std::string bytes = "a\xff\xc3(\x80";
  const Finished job = run_job({"--standalone", "--nproc-per-node", "1", "--no-python", "/bin/sh",
                                "-c", "printf '%s\\n' \"$1\"; exit 3", "sh", bytes});
  EXPECT_EQ(job.status, 3) << job.err;
  EXPECT_THAT(job.out, HasSubstr(bytes + "\n"));
  EXPECT_THAT(job.err, HasSubstr("exitcode  : 3"));
}

TEST_F(DdpRunJob, TwoNodesAreOneWorld) {
  const int port = free_port();
  const std::string script = environment_script();
  Process& first = start(node(2, port, {"--node-rank", "1", "--nproc-per-node", "1", script}));
  Process& second = start(node(2, port, {"--node-rank", "0", "--nproc-per-node", "2", script}));
  ASSERT_EQ(first.wait(), 0) << first.err();
  ASSERT_EQ(second.wait(), 0) << second.err();
  const std::vector<std::vector<std::string>> expected{
      {"0", "0", "0", "2"}, {"1", "1", "0", "2"}, {"2", "0", "1", "1"}};
  for (int rank = 0; rank < 3; ++rank) {
    auto env = environment_of(rank);
    EXPECT_THAT((std::vector<std::string>{env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"],
                                          env["LOCAL_WORLD_SIZE"]}),
                testing::ElementsAreArray(expected[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(env["WORLD_SIZE"], "3");
    EXPECT_EQ(env["GROUP_WORLD_SIZE"], "2");
    EXPECT_EQ(env["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(env["MASTER_PORT"], std::to_string(port));
    EXPECT_EQ(env["TORCHELASTIC_RUN_ID"], "job");
  }
}

TEST_F(DdpRunJob, StandardOutputCarriesTheWorkersOutputAlone) {
  const Finished job =
      run_job({"--nproc-per-node", "1", "sh", "-c", "echo to-out; echo to-err >&2; cat; exit 3"});
  EXPECT_EQ(job.status, 3);
  EXPECT_EQ(job.out, "to-out\n");
  EXPECT_THAT(job.err, HasSubstr("to-err\n"));
}

TEST_F(DdpRunJob, ArgumentsArriveUntouched) {
  const Finished job =
      run_job({"--standalone", folder_.script("args.sh", "printf '<%s>' \"$@\"; echo\n"),
               "--nnodes", "4:2", "a b", "", "--", "-x_y"});
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(job.out, "<--nnodes><4:2><a b><><--><-x_y>\n");
}

TEST_F(DdpRunJob, RestartsUntilItSucceeds) {
  const std::string script = folder_.script("worker.sh",
                                            "n=$TORCHELASTIC_RESTART_COUNT\n"
                                            "echo $RANK:$n:$DDP_ROUND\n"
                                            "[ $n = 2 ] && exit 0\n"
                                            "[ $RANK = 0 ] && { echo > $OUT/said.$n; sleep 100; }\n"
                                            "until [ -e $OUT/said.$n ]; do sleep 0.01; done\n"
                                            "exit 9\n");
  const Finished job = run_job({"--nproc-per-node", "2", "--max-restarts", "3", script});
  EXPECT_EQ(job.status, 0) << job.err;
  for (const char* line : {"0:0:0\n", "1:0:0\n", "0:1:1\n", "1:1:1\n", "0:2:2\n", "1:2:2\n"}) {
    EXPECT_THAT(job.out, HasSubstr(line));
  }
  EXPECT_THAT(job.err, HasSubstr("ddp-run: round 1: "));
  EXPECT_THAT(job.err, HasSubstr("restart 2 of 3"));
}

TEST_F(DdpRunJob, EndsWhenTheRestartsAreUsedUp) {
  const Finished job =
      run_job({"--max-restarts", "2", "sh", "-c", "echo x >> $OUT/starts; exit 41"});
  EXPECT_EQ(job.status, 41);
  EXPECT_EQ(folder_.read("starts"), "x\nx\nx\n");
}

// One budget for the whole job: a failure anywhere restarts everywhere, and all nodes end with the
// same status.
TEST_F(DdpRunJob, NodesShareBudgetAndStatus) {
  const int port = free_port();
  const std::string script = folder_.script(
      "fail.sh",
      "echo x >> $OUT/starts.$RANK\n"
      "[ $RANK = 0 ] && sleep 100\n"
      "until [ $(wc -l < $OUT/starts.0) -gt $TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done\n"
      "exit 5\n");
  Process& first = start(node(2, port, {"--max-restarts", "1", "--node-rank", "0", script}));
  Process& second = start(node(2, port, {"--max-restarts", "1", "--node-rank", "1", script}));
  EXPECT_EQ(first.wait(), 5) << first.err();
  EXPECT_EQ(second.wait(), 5) << second.err();
  EXPECT_EQ(folder_.read("starts.0"), "x\nx\n");
  EXPECT_EQ(folder_.read("starts.1"), "x\nx\n");
  // One report in all, from the node that hosts the rendezvous; the other has a line.
  EXPECT_THAT(first.err(), HasSubstr("Root Cause (first observed failure):"));
  EXPECT_THAT(second.err(), testing::Not(HasSubstr("Root Cause")));
  EXPECT_THAT(second.err(), HasSubstr("ddp-run: "));
}

TEST_F(DdpRunJob, LogDirHasAFilePerRank) {
  const Finished job = run_job({"--nproc-per-node", "2", "--rdzv-id", "j", "--log-dir", "logs",
                                "sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  ASSERT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(folder_.read("logs/j/round_0/rank_0." + host() + ".out"), "out 0\n");
  EXPECT_EQ(folder_.read("logs/j/round_0/rank_1." + host() + ".err"), "err 1\n");
}

// Two ddp-run on one endpoint at the same moment: one hosts, the other finds it.
TEST_F(DdpRunJob, WhoComesFirstHosts) {
  for (int i = 0; i < 5; ++i) {
    const int port = free_port();
    Process& a = start(node(2, port, {"true"}));
    Process& b = start(node(2, port, {"true"}));
    EXPECT_EQ(a.wait(), 0) << a.err();
    EXPECT_EQ(b.wait(), 0) << b.err();
  }
}

TEST_F(DdpRunJob, ADaemonThatRunsAlreadyIsUsed) {
  const int port = free_port();
  Process daemon({bin("ddp-rendezvous"), "--bind", "127.0.0.1", "--port", std::to_string(port)});
  ASSERT_TRUE(wait_until([&] {
    return daemon.out().find("listening") != std::string::npos ||
           daemon.err().find("listening") != std::string::npos;
  }));
  const Finished job = run_job(node(1, port, {"sh", "-c", "echo $MASTER_PORT; exit 6"}));
  EXPECT_EQ(job.status, 6);
  EXPECT_EQ(job.out, std::to_string(port) + "\n");
  EXPECT_THAT(job.err, HasSubstr("Root Cause"));
  EXPECT_FALSE(daemon.has_ended());
}

TEST_F(DdpRunJob, ManyWorkersNeedNoHigherLimitOfOpenFilesAndGetNone) {
  const Finished job =
      run({"sh", "-c", "ulimit -S -n 64 && exec \"$@\"", "sh", bin("ddp-run"), "--standalone",
           "--nproc-per-node", "30", "--no-python", "sh", "-c", "ulimit -S -n"});
  EXPECT_EQ(job.status, 0) << job.err;
  std::istringstream lines(job.out);
  int workers = 0;
  for (std::string line; std::getline(lines, line); ++workers) {
    EXPECT_TRUE(line.ends_with("] 64")) << line;
  }
  EXPECT_EQ(workers, 30);
}

// torchrun's --rdzv-conf store_type=file; its own file is of no use to a second run of the job.
TEST_F(DdpRunJob, NodesMeetThroughAFileAgainAndAgain) {
  const std::string meeting = folder_.path() / "meeting";
  const Arguments node{"--nnodes",
                       "2",
                       "--rdzv-backend",
                       "c10d",
                       "--rdzv-conf",
                       "store_type=file",
                       "--rdzv-endpoint",
                       meeting,
                       "sh",
                       "-c",
                       "echo $RANK of $WORLD_SIZE"};
  for (int run = 0; run < 2; ++run) {
    Process& first = start(node);
    Process& second = start(node);
    EXPECT_EQ(first.wait(), 0) << first.err();
    EXPECT_EQ(second.wait(), 0) << second.err();
    EXPECT_THAT(first.out() + second.out(), HasSubstr("0 of 2\n"));
    EXPECT_THAT(first.out() + second.out(), HasSubstr("1 of 2\n"));
  }
}

}  // namespace
}  // namespace ddp::test
