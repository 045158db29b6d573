#include <nlohmann/json.hpp>

#include "tests/process/ddp_run_fixture.h"
#include "tests/support/etcd_cluster.h"

namespace ddp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class DdpRunEtcd : public DdpRunTest {
 protected:
  // Flags of one node.
  Arguments node(const EtcdCluster& etcd, const std::string& nnodes, const Arguments& more) {
    Arguments arguments{"--nnodes",        nnodes,           "--rdzv-backend", "etcd",
                        "--rdzv-endpoint", etcd.endpoints(), "--rdzv-id",      "job"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Stays in round 0 until there is a file "go"; ends at once in later rounds. Says where it was.
  std::string script() {
    return folder_.script("worker.sh",
                          "echo $$ > $OUT/pid.$RANK.$DDP_ROUND\n"
                          "echo round $DDP_ROUND restarts $TORCHELASTIC_RESTART_COUNT\n"
                          "[ $DDP_ROUND -gt 0 ] && exit 0\n"
                          "while [ ! -f $OUT/go ]; do sleep 0.05; done\n");
  }
  // Until the workers of a round run.
  void wait_for_workers(int count, int round) {
    for (int rank = 0; rank < count; ++rank) {
      pid_in("pid." + std::to_string(rank) + "." + std::to_string(round));
    }
  }
  // The value of one of the job's keys, {} if it is not there.
  static json key(const EtcdCluster& etcd, const std::string& name) {
    const std::string found = etcd.get("/ddp-run/job/" + name);
    const auto line = found.find('\n');
    if (line == std::string::npos) return json::object();
    return json::parse(found.substr(line + 1));
  }
  static bool has_leader(const EtcdCluster& etcd) { return key(etcd, "leader").contains("port"); }
};

TEST_F(DdpRunEtcd, NoNodeNeedsToBeTheHost) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  folder_.write("go", "");
  Process& first = start(node(etcd, "2", {script()}));
  Process& second = start(node(etcd, "2", {script()}));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(first.out() + second.out(), HasSubstr(":0] round 0 restarts 0"));
  EXPECT_THAT(first.out() + second.out(), HasSubstr(":1] round 0 restarts 0"));
  // The office is free; how the job ended stays for a while, and nobody begins it again.
  EXPECT_TRUE(wait_until([&] { return !has_leader(etcd); }));
  const json state = key(etcd, "state");
  EXPECT_EQ(state.at("next_round"), 1);
  EXPECT_EQ(state.at("result").at("exit_code"), 0);
  const Finished late = run_job(node(etcd, "2", {script()}));
  EXPECT_EQ(late.status, 74) << late.err;
  EXPECT_THAT(late.err, HasSubstr("job job is over"));
}

TEST_F(DdpRunEtcd, ThePrefixIsTheUsers) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  const Finished job = run_job(node(etcd, "1", {"--rdzv-conf", "etcd_prefix=/mine", "true"}));
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_THAT(etcd.get("/mine/job/state"), HasSubstr("next_round"));
  EXPECT_EQ(etcd.get("/ddp-run"), "none");
}

// The coordinator's machine is gone, and with it one node of three; the other two go on.
TEST_F(DdpRunEtcd, TheCoordinatorsDdpRunIsKilled) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  const Arguments flags = node(etcd, "2:3", {"--max-restarts", "1", "--last-call", "30", script()});
  Process& coordinator = start(flags);
  ASSERT_TRUE(wait_until([&] { return has_leader(etcd); }));
  Process& second = start(flags);
  Process& third = start(flags);
  wait_for_workers(3, 0);
  coordinator.kill(SIGKILL);
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(third.wait(), 0) << third.err();
  // One restart, for the node; the change of coordinators is free.
  EXPECT_THAT(second.out(), HasSubstr("round 1 restarts 1")) << second.err();
  EXPECT_THAT(third.out(), HasSubstr("round 1 restarts 1")) << third.err();
  const json state = key(etcd, "state");
  EXPECT_GE(state.at("coordinators"), 2) << state;
  EXPECT_EQ(state.at("restarts"), 1) << state;
  EXPECT_EQ(state.at("next_round"), 2) << state;
}

// Leaving is not closing, also for the coordinator.
TEST_F(DdpRunEtcd, TheCoordinatorsDdpRunLeaves) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  const Arguments flags = node(etcd, "2:3", {"--last-call", "10", script()});
  Process& coordinator = start(flags);
  ASSERT_TRUE(wait_until([&] { return has_leader(etcd); }));
  Process& second = start(flags);
  Process& third = start(flags);
  wait_for_workers(3, 0);
  coordinator.kill(SIGTERM);
  EXPECT_EQ(coordinator.wait(), 128 + SIGTERM) << coordinator.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(third.wait(), 0) << third.err();
  EXPECT_THAT(second.out(), HasSubstr("round 1 restarts 0")) << second.err();
}

// It slept through the end of its lease. Nobody is lost, so the round goes on under the new
// coordinator, and the old one, which sees all its agents gone, must not stop it.
TEST_F(DdpRunEtcd, ARoundOutlivesItsCoordinator) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  const Arguments flags = node(etcd, "2", {"--coordinator-timeout", "100", script()});
  Process& first = start(flags);
  ASSERT_TRUE(wait_until([&] { return has_leader(etcd); }));
  Process& second = start(flags);
  wait_for_workers(2, 0);
  first.kill(SIGSTOP);
  ASSERT_TRUE(wait_until([&] { return key(etcd, "state").value("coordinators", 0) == 2; }));
  first.kill(SIGCONT);
  ASSERT_TRUE(second.complains("is lost; the workers go on"));
  ASSERT_TRUE(first.complains("is lost; the workers go on"));
  folder_.write("go", "");
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(first.out() + second.out(), Not(HasSubstr("round 1")));
  EXPECT_EQ(key(etcd, "state").at("restarts"), 0);
  EXPECT_EQ(key(etcd, "state").at("next_round"), 1);
}

// A node whose agent takes its time to end becomes the coordinator of a job that is over.
TEST_F(DdpRunEtcd, AnAgentMayOutliveTheOtherNodes) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  const Arguments flags = node(etcd, "2", {script()});
  Process& quick = start(flags);
  ASSERT_TRUE(wait_until([&] { return has_leader(etcd); }));
  // ddp-run starts the agent that lies beside it.
  const std::string copy = folder_.path() / "ddp-run";
  std::filesystem::copy_file(bin("ddp-run"), copy);
  folder_.script("ddp-agent", bin("ddp-agent") +
                                  " \"$@\"\nstatus=$?\n"
                                  "while [ ! -f $OUT/end ]; do sleep 0.05; done\n"
                                  "exit $status\n");
  Process& slow = start(flags, {}, copy);
  wait_for_workers(2, 0);
  folder_.write("go", "");
  EXPECT_EQ(quick.wait(), 0) << quick.err();
  EXPECT_TRUE(wait_until([&] { return key(etcd, "state").value("coordinators", 0) == 2; }));
  folder_.write("end", "");
  EXPECT_EQ(slow.wait(), 0) << slow.err();
}

// etcd loses its leader, then the job its coordinator.
TEST_F(DdpRunEtcd, AMemberOfThreeIsKilled) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(3);
  ASSERT_TRUE(etcd.wait_until_ready());
  const Arguments flags = node(etcd, "1:2", {"--max-restarts", "1", "--last-call", "30", script()});
  Process& coordinator = start(flags);
  ASSERT_TRUE(wait_until([&] { return has_leader(etcd); }));
  Process& second = start(flags);
  wait_for_workers(2, 0);
  const int leader = etcd.leader();
  ASSERT_GE(leader, 0);
  etcd.kill(leader);
  coordinator.kill(SIGKILL);
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(second.out(), HasSubstr("round 1 restarts 1")) << second.err();
}

// Nobody needs etcd in mid-run.
TEST_F(DdpRunEtcd, TheWholeClusterIsAwayForAWhile) {
  DDP_NEEDS_ETCD();
  EtcdCluster etcd(1);
  ASSERT_TRUE(etcd.wait_until_ready());
  Process& job = start(node(etcd, "1", {"--max-restarts", "1", script()}));
  const pid_t worker = pid_in("pid.0.0");
  etcd.kill(0);
  ::kill(worker, SIGKILL);
  std::this_thread::sleep_for(500ms);  // sleep: no round begins without its record
  EXPECT_THAT(job.out(), Not(HasSubstr("round 1")));
  etcd.start(0);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("round 1 restarts 1"));
}

// Both sides show a certificate.
TEST_F(DdpRunEtcd, OverTls) {
  DDP_NEEDS_ETCD();
  const TempDir tls;
  const std::string folder = tls.path();
  const std::string made = tls.script(
      "make.sh",
      "set -e; cd " + folder +
          "\n"
          "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca\n"
          "openssl req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=node\n"
          "echo subjectAltName=IP:127.0.0.1 > node.ext\n"
          "openssl x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out node.pem "
          "-extfile node.ext\n");
  const Finished certificates = run({made});
  if (certificates.status == 127) GTEST_SKIP() << "openssl is not installed";
  ASSERT_EQ(certificates.status, 0) << certificates.err;
  EtcdCluster etcd(1, folder);
  ASSERT_TRUE(etcd.wait_until_ready());
  const std::string own = ",cert=" + folder + "/node.pem,key=" + folder + "/node.key";
  const auto conf = [&](const std::string& rest, const std::string& join_timeout = "240") {
    return node(etcd, "1",
                {"--join-timeout", join_timeout, "--rdzv-conf", "protocol=https" + rest, "true"});
  };
  const Finished right = run_job(conf(",cacert=" + folder + "/ca.pem" + own));
  EXPECT_EQ(right.status, 0) << right.err;
  const Finished stranger = run_job(conf(own));
  EXPECT_EQ(stranger.status, 64);
  EXPECT_THAT(stranger.err, HasSubstr("certificate"));
  EXPECT_THAT(stranger.err, HasSubstr("cacert"));
  const Finished nameless = run_job(conf(",cacert=" + folder + "/ca.pem", "2"));
  EXPECT_EQ(nameless.status, 67) << nameless.err;
}

TEST_F(DdpRunEtcd, EtcdIsNotThere) {
  const Finished job = run_job({"--rdzv-backend", "etcd", "--rdzv-endpoint",
                                "127.0.0.1:" + std::to_string(free_port()), "--rdzv-id", "job",
                                "--join-timeout", "1", "true"});
  EXPECT_EQ(job.status, 67);
  EXPECT_THAT(job.err, HasSubstr("etcd does not answer at http://127.0.0.1:"));
}

TEST_F(DdpRunEtcd, SignalWhileEtcdIsNotThere) {
  Process& job = start({"--rdzv-backend", "etcd", "--rdzv-endpoint",
                        "127.0.0.1:" + std::to_string(free_port()), "--rdzv-id", "job", "true"});
  ASSERT_TRUE(job.complains("etcd does not answer"));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
}

}  // namespace
}  // namespace ddp::test
