#include <sys/socket.h>

#include <thread>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class DdpRunExit : public DdpRunTest {};

TEST_F(DdpRunExit, SuccessIsSilent) {
  const Finished job = run_job({"--standalone", "--nproc-per-node", "2", "true"});
  EXPECT_EQ(job.status, 0);
  EXPECT_EQ(job.out, "");
  EXPECT_EQ(job.err, "");
}

// A script that becomes ddp-run may have started others, such as a `tee` for the output.
TEST_F(DdpRunExit, ChildrenFromBeforeAreLeftAlone) {
  Process job({"sh", "-c", "sleep 1000 & echo $!; exec \"$0\" --standalone true", bin("ddp-run")});
  EXPECT_EQ(job.wait(), 0) << job.err();
  const pid_t sleeper = std::stoi(job.out());
  EXPECT_EQ(::kill(sleeper, SIGKILL), 0) << "it has ended";
}

TEST_F(DdpRunExit, StatusIsTheFailedWorkers) {
  for (const int status : {1, 37, 255}) {
    const Finished job =
        run_job({"--nproc-per-node", "2", "sh", "-c",
                 "[ $RANK = 1 ] && exit " + std::to_string(status) + "; sleep 100"});
    EXPECT_EQ(job.status, status);
    EXPECT_EQ(job.out, "");
    EXPECT_THAT(job.err, HasSubstr("Root Cause (first observed failure):"));
    EXPECT_THAT(job.err, HasSubstr("rank      : 1 (local_rank: 1)"));
  }
}

TEST_F(DdpRunExit, SignalIs128AndItsNumber) {
  EXPECT_EQ(run_job({"sh", "-c", "kill -KILL ${$}"}).status, 128 + SIGKILL);
  EXPECT_EQ(run_job({"sh", "-c", "kill -SEGV ${$}"}).status, 128 + SIGSEGV);
}

TEST_F(DdpRunExit, ProgramThatIsNotThere) {
  const Finished job = run_job({"./no-such-program"});
  EXPECT_EQ(job.status, 127);
  EXPECT_EQ(job.err, "ddp-run: ./no-such-program: there is no such program\n");
  const Finished script = run_job({"no-such-script.py"});
  EXPECT_EQ(script.status, 127);
  EXPECT_EQ(script.err, "ddp-run: no-such-script.py: there is no such file to run under python3\n");
}

TEST_F(DdpRunExit, ProgramThatCannotBeExecuted) {
  folder_.write("plain", "#!/bin/sh\n");
  const Finished job = run_job({"./plain"});
  EXPECT_EQ(job.status, 126);
  EXPECT_EQ(job.err, "ddp-run: ./plain: cannot be executed; try chmod +x ./plain\n");
  std::filesystem::create_directory(folder_.path() / "folder");
  const Finished folder = run_job({"./folder"});
  EXPECT_EQ(folder.status, 126);
  EXPECT_EQ(folder.err, "ddp-run: ./folder: is a folder without __main__.py, not a program\n");
}

TEST_F(DdpRunExit, WhatIsForPythonRunsUnderIt) {
  const std::string script = "import sys; print('argv', sys.argv[1:])\n";
  folder_.write("script", script);  // There is a program of this name, too.
  folder_.write("executable", script, 0755);
  std::filesystem::create_directory(folder_.path() / "package");
  folder_.write("package/__main__.py", script);
  for (const char* program : {"script", "./script", "./executable", "executable", "package"}) {
    const Finished job = run_job({program, "--lr", "1"});
    EXPECT_EQ(job.status, 0) << program << job.err;
    EXPECT_EQ(job.out, "argv ['--lr', '1']\n") << program;
  }
  folder_.write("true", script, 0755);
  EXPECT_EQ(run_job({"true"}).out, "");
  EXPECT_EQ(run_job({"./true"}).out, "argv []\n");
}

// Found out by the agent alone: the file looks executable until it is executed. No use in
// restarting.
TEST_F(DdpRunExit, ProgramThatTheKernelRefuses) {
  folder_.write("odd", "#!/no/such/interpreter\n", 0755);
  const Finished job = run_job({"--max-restarts", "3", "./odd"});
  EXPECT_EQ(job.status, 126);
  EXPECT_THAT(job.err, HasSubstr("./odd"));
  EXPECT_THAT(job.err, HasSubstr("0 of 3 restarts used"));
}

TEST_F(DdpRunExit, BadLinesHaveTheirOwnStatusAndOneLine) {
  const Finished flag = run_job({"--nnode5", "2", "true"});
  EXPECT_EQ(flag.status, 2);
  EXPECT_EQ(
      flag.err,
      "usage: ddp-run [FLAG...] PROGRAM [ARG...]\n"
      "ddp-run: --nnode5: there is no such flag; --nnodes is the nearest, --help lists them all\n");
  const Finished value = run_job({"--nnodes", "4:2", "true"});
  EXPECT_EQ(value.status, 64);
  EXPECT_EQ(value.err,
            "ddp-run: --nnodes 4:2: the minimum 4 is larger than the maximum 2; write MIN:MAX, for "
            "example 2:4\n");
  const Finished gpu = run_job({"--nproc-per-node", "gpu", "true"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(gpu.status, 64);
  EXPECT_THAT(gpu.err, HasSubstr("--nproc-per-node gpu: this machine has no CUDA device"));
}

TEST_F(DdpRunExit, HelpAndVersionGoToStandardOutput) {
  const Finished help = run_job({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--nproc-per-node N|auto|cpu|gpu"));
  EXPECT_EQ(help.err, "");
  const Finished version = run_job({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.out, testing::MatchesRegex("ddp-run [0-9.]+\n"));
}

TEST_F(DdpRunExit, WarnsOfKeysWithoutEffect) {
  const Finished job = run_job({"--rdzv-conf", "read_timeout=5", "true"});
  EXPECT_EQ(job.status, 0);
  EXPECT_THAT(job.err,
              HasSubstr("ddp-run: --rdzv-conf read_timeout=5: the key read_timeout has no effect"));
}

void expect_port_in_use(const Finished& job, int port) {
  EXPECT_EQ(job.status, 66);
  const std::string endpoint = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(job.err, "ddp-run: --rdzv-endpoint " + endpoint + ": " + endpoint +
                         " is in use by a program that is not a ddp-run rendezvous; end it, or "
                         "choose another endpoint on all nodes; `ss -ltnp 'sport = :" +
                         std::to_string(port) + "'` shows it\n");
}

TEST_F(DdpRunExit, PortOfASilentListener) {
  const ListeningSocket listener;
  expect_port_in_use(run_job(node(1, listener.port(), {"true"})), listener.port());
}

TEST_F(DdpRunExit, PortOfAChattyListener) {
  const ListeningSocket listener;
  std::thread chatter([&listener] {
    for (;;) {
      const int fd = ::accept(listener.fd(), nullptr, nullptr);
      if (fd < 0) return;
      ::send(fd, "220 mail.example ESMTP\r\n", 24, MSG_NOSIGNAL);
      ::close(fd);
    }
  });
  expect_port_in_use(run_job(node(1, listener.port(), {"true"})), listener.port());
  ::shutdown(listener.fd(), SHUT_RDWR);
  chatter.join();
}

TEST_F(DdpRunExit, EndpointThatNobodyAnswers) {
  const int port = free_port();
  const Finished job =
      run_job(node(2, port, {"--node-rank", "1", "--join-timeout", "0.5", "true"}));
  EXPECT_EQ(job.status, 67);
  EXPECT_THAT(job.err, HasSubstr("--rdzv-endpoint 127.0.0.1:" + std::to_string(port) +
                                 ": no rendezvous answers"));
}

// Nobody else can come, so nothing is to be waited for.
TEST_F(DdpRunExit, AJobOfOneUnfitNodeEndsAtOnce) {
  const Finished job =
      run_job({"--standalone", "--health-check", "--check-dir", folder_.path() / "nosuch", "true"});
  EXPECT_EQ(job.status, 77);
  EXPECT_THAT(job.err, HasSubstr("/nosuch: No such file or directory"));
}

TEST_F(DdpRunExit, NodesThatDoNotComeAreCounted) {
  const Finished job = run_job(node(3, free_port(), {"--join-timeout", "0.5", "true"}));
  EXPECT_EQ(job.status, 67);
  EXPECT_THAT(job.err, HasSubstr("1 of 3"));
  EXPECT_THAT(job.err, HasSubstr("2 missing"));
  EXPECT_THAT(job.err, HasSubstr("name a host that all nodes reach"));
}

TEST_F(DdpRunExit, ASecondNodeOfTheSameRankIsRefused) {
  const int port = free_port();
  Process& first = start(node(2, port, {"--node-rank", "0", "true"}));
  ASSERT_TRUE(first.complains("1 of 2"));
  const Finished twin = run_job(node(2, port, {"--node-rank", "0", "true"}));
  EXPECT_EQ(twin.status, 74);
  EXPECT_THAT(twin.err, HasSubstr("--node-rank 0 is taken by"));
}

// As under torchrun, whose c10d backend gives the ranks itself.
TEST_F(DdpRunExit, NodesThatWishForTheSameRankRunUnderC10d) {
  const int port = free_port();
  const Arguments flags =
      node(2, port,
           {"--rdzv-backend", "c10d", "--node-rank", "1", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  Process& first = start(flags);
  Process& second = start(flags);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  const std::string out = first.out() + second.out();
  EXPECT_THAT(out, HasSubstr("0 of 2\n"));
  EXPECT_THAT(out, HasSubstr("1 of 2\n"));
  EXPECT_THAT(first.err() + second.err(),
              HasSubstr("ddp-run: --node-rank 1 is taken by " + host() +
                        "; this node gets another rank. Give each node its own\n"));
}

TEST_F(DdpRunExit, ANodeRankMeansNothingToAStandaloneJob) {
  const Finished job = run_job({"--standalone", "true"}, {{"PET_NODE_RANK", "1"}});
  EXPECT_EQ(job.status, 0);
  EXPECT_EQ(job.err, "");
}

// 0.0.0.0 leads to this machine and is no address of it, as a NAT's or a service's.
TEST_F(DdpRunExit, NodeZeroHostsAtAMasterAddressThatIsNotItsOwn) {
  const std::string port = std::to_string(free_port());
  const auto start_node = [&](const std::string& rank) -> Process& {
    return start({"--nnodes", "2", "--node-rank", rank, "--master-addr", "0.0.0.0", "--master-port",
                  port, "--join-timeout", "20", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  };
  Process& other = start_node("1");
  Process& master = start_node("0");
  EXPECT_EQ(master.wait(), 0) << master.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_THAT(master.out(), HasSubstr("0 of 2\n"));
  EXPECT_THAT(other.out(), HasSubstr("1 of 2\n"));
}

TEST_F(DdpRunExit, AnAgentThatIsNotThereIsNamed) {
  std::filesystem::copy(bin("ddp-run"), folder_.path() / "ddp-run");
  const Finished job = run({folder_.path() / "ddp-run", "true"});
  EXPECT_EQ(job.status, 70);
  EXPECT_EQ(job.err, "ddp-run: " + (folder_.path() / "ddp-agent").string() +
                         ": there is no such program; it belongs beside ddp-run\n");
}

TEST_F(DdpRunExit, NodeThatDescribesTheJobOtherwiseIsRefused) {
  const int port = free_port();
  Process& first = start(node(2, port, {"--max-restarts", "1", "sh", "-c", "sleep 0.1"}));
  ASSERT_TRUE(first.complains("1 of 2"));
  const Finished other = run_job(node(3, port, {"--max-restarts", "1", "true"}));
  EXPECT_EQ(other.status, 74);
  EXPECT_THAT(other.err, HasSubstr("refuses this node"));
  const Finished second = run_job(node(2, port, {"--max-restarts", "1", "true"}));
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(first.wait(), 0) << first.err();
}

}  // namespace
}  // namespace ddp::test
