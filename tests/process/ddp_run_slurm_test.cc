// ddp-run as tasks of srun, without SLURM: srun's tasks learn everything from their environment,
// which the test sets itself. tests/slurm uses a real SLURM.
#include <signal.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <sched.h>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class DdpRunSlurm : public DdpRunTest {
 protected:
  using Environment = std::map<std::string, std::string>;

  // Of a step whose nodes, all of them this machine, have that many tasks each.
  static Environment task_environment(const std::vector<int>& tasks, int node, int local_rank) {
    std::string hosts;
    std::string counts;
    int all = 0;
    int before = 0;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      hosts += i > 0 ? ",localhost" : "localhost";
      counts += (i > 0 ? "," : "") + std::to_string(tasks[i]);
      all += tasks[i];
      if (static_cast<int>(i) < node) before += tasks[i];
    }
    static const std::string job = std::to_string(::getpid());
    static int steps = 0;
    if (node == 0 && local_rank == 0) ++steps;
    return {{"SLURM_JOB_ID", job},
            {"SLURM_STEP_ID", std::to_string(steps)},
            {"SLURM_STEP_NODELIST", hosts},
            {"SLURM_STEP_TASKS_PER_NODE", counts},
            {"SLURM_STEP_NUM_NODES", std::to_string(tasks.size())},
            {"SLURM_STEP_NUM_TASKS", std::to_string(all)},
            {"SLURM_NODEID", std::to_string(node)},
            {"SLURM_LOCALID", std::to_string(local_rank)},
            {"SLURM_PROCID", std::to_string(before + local_rank)},
            {"SLURM_JOB_END_TIME", "4000000000"},
            {"CUDA_VISIBLE_DEVICES", ""}};
  }

  // All tasks of the step, in the order of their ranks.
  std::vector<Process*> start_step(const std::vector<int>& tasks, const Arguments& arguments,
                                   const Environment& more = {}) {
    std::vector<Process*> started;
    for (int node = 0; node < static_cast<int>(tasks.size()); ++node) {
      for (int i = 0; i < tasks[static_cast<std::size_t>(node)]; ++i) {
        Environment environment = task_environment(tasks, node, i);
        environment.insert(more.begin(), more.end());
        started.push_back(&start(arguments, environment));
      }
    }
    return started;
  }

  bool lives(pid_t pid) const {
    const std::vector<pid_t> all = alive();
    return std::find(all.begin(), all.end(), pid) != all.end();
  }

  static std::vector<int> statuses(const std::vector<Process*>& tasks) {
    std::vector<int> all;
    for (Process* task : tasks) all.push_back(task->wait().value_or(-1));
    return all;
  }

  static std::string errors(const std::vector<Process*>& tasks) {
    std::string text;
    for (const Process* task : tasks) text += task->err();
    return text;
  }
};

using Arguments = std::vector<std::string>;

Arguments script(const std::string& text) { return {"--no-python", "/bin/sh", "-c", text}; }

Arguments flags_and_script(Arguments flags, const std::string& text) {
  for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), text})
    flags.push_back(word);
  return flags;
}

TEST_F(DdpRunSlurm, OneTaskANodeNeedsNoFlags) {
  const auto tasks = start_step(
      {1, 1, 1}, script("echo rank $RANK of $WORLD_SIZE, node $GROUP_RANK is $SLURM_NODEID, "
                        "$LOCAL_WORLD_SIZE here, run $TORCHELASTIC_RUN_ID"));
  EXPECT_EQ(statuses(tasks), std::vector<int>(3, 0)) << errors(tasks);
  for (int i = 0; i < 3; ++i) {
    const std::string expected = "rank " + std::to_string(i) + " of 3, node " + std::to_string(i) +
                                 " is " + std::to_string(i) + ", 1 here, run " +
                                 std::to_string(::getpid()) + ".";
    EXPECT_THAT(tasks[static_cast<std::size_t>(i)]->out(), HasSubstr(expected));
  }
}

TEST_F(DdpRunSlurm, TheTasksAreTheWorkersAndTheirParents) {
  const auto tasks = start_step(
      {2, 3}, script("echo rank $RANK of $WORLD_SIZE is task $SLURM_PROCID, local $LOCAL_RANK is "
                     "$SLURM_LOCALID of $LOCAL_WORLD_SIZE on $GROUP_RANK, parent $PPID."));
  EXPECT_EQ(statuses(tasks), std::vector<int>(5, 0)) << errors(tasks);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::size_t node = i < 2 ? 0 : 1;
    const std::size_t local_rank = i - 2 * node;
    const std::string rank = std::to_string(i);
    const std::string local = std::to_string(local_rank);
    // Whatever its parent, its output goes through the agent of its node.
    const std::string out = tasks[2 * node]->out();
    EXPECT_THAT(out, HasSubstr("rank " + rank + " of 5 is task " + rank + ", local " + local +
                               " is " + local + " of " + (node == 0 ? "2" : "3") + " on " +
                               std::to_string(node) + ","));
    if (local_rank > 0) {
      EXPECT_THAT(out, HasSubstr("parent " + std::to_string(tasks[i]->pid()) + "."));
      EXPECT_EQ(tasks[i]->out(), "");
    }
  }
}

TEST_F(DdpRunSlurm, AWorkerHasItsTasksCpus) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "this machine has one CPU";
  std::vector<Process*> tasks;
  int cpu = -1;
  std::vector<std::string> expected;
  for (int i = 0; i < 2; ++i) {
    do {
      ++cpu;
    } while (!CPU_ISSET(static_cast<unsigned>(cpu), &all));
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(cpu), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    tasks.push_back(&start(script("while read name cpus; do [ $name = Cpus_allowed_list: ] && "
                                  "echo $RANK: CPU $cpus, $OMP_NUM_THREADS threads.; done < "
                                  "/proc/self/status; exit 0"),
                           task_environment({2}, 0, i)));
    expected.push_back(std::to_string(i) + ": CPU " + std::to_string(cpu) + ", 1 threads.");
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(statuses(tasks), std::vector<int>(2, 0)) << errors(tasks);
  for (const std::string& line : expected) EXPECT_THAT(tasks[0]->out(), HasSubstr(line));
}

TEST_F(DdpRunSlurm, AWorkerThatIsKilledStartsAgainInItsTask) {
  const auto tasks =
      start_step({3}, flags_and_script({"--max-restarts", "1", "--no-python"},
                                       "echo round $DDP_ROUND rank $RANK parent $PPID.; "
                                       "[ $RANK.$DDP_ROUND = 2.0 ] && kill -9 ${$}; exit 0"));
  EXPECT_EQ(statuses(tasks), std::vector<int>(3, 0)) << errors(tasks);
  const std::string parent = " rank 2 parent " + std::to_string(tasks[2]->pid()) + ".";
  EXPECT_THAT(tasks[0]->out(), HasSubstr("round 0" + parent));
  EXPECT_THAT(tasks[0]->out(), HasSubstr("round 1" + parent));
}

TEST_F(DdpRunSlurm, AllTasksEndWithTheStatusOfTheFirstFailure) {
  const auto tasks = start_step({2, 2}, script("[ $RANK = 3 ] && exit 7; exec /bin/sleep 100"));
  EXPECT_EQ(statuses(tasks), std::vector<int>(4, 7)) << errors(tasks);
  EXPECT_THAT(errors(tasks), HasSubstr("exit code 7"));
}

TEST_F(DdpRunSlurm, WhatWorkersLeaveBehindGoesWithTheirRound) {
  const auto tasks = start_step(
      {2}, flags_and_script({"--max-restarts", "1", "--no-python"},
                            "if [ $DDP_ROUND = 0 ]; then setsid /bin/sleep 1000 & echo $! > "
                            "$OUT/left.$RANK; [ $RANK = 0 ] && while ! [ -s $OUT/left.1 ]; do :; "
                            "done; exit $RANK; fi; kill -0 $(cat $OUT/left.$RANK) && exit 9; "
                            "exit 0"));
  EXPECT_EQ(statuses(tasks), std::vector<int>(2, 0)) << errors(tasks);
}

TEST_F(DdpRunSlurm, ATaskThatIsKilledCostsOneRestart) {
  const auto tasks = start_step(
      {2}, flags_and_script({"--max-restarts", "1", "--no-python"},
                            "[ $DDP_ROUND = 1 ] && exit 0; echo ${$} > $OUT/pid.$RANK; exec "
                            "/bin/sleep 1000"));
  pid_in("pid.0");
  const pid_t worker = pid_in("pid.1");
  tasks[1]->kill(SIGKILL);
  EXPECT_EQ(tasks[0]->wait(), 0) << tasks[0]->err();
  EXPECT_TRUE(wait_until([&] { return !lives(worker); }));
  EXPECT_EQ(tasks[1]->wait(), 128 + SIGKILL);
}

TEST_F(DdpRunSlurm, TheTasksFollowFromOneAgentToTheNext) {
  const auto tasks = start_step(
      {3}, flags_and_script({"--max-restarts", "1", "--no-python"},
                            "echo round $DDP_ROUND rank $RANK parent $PPID.; [ $DDP_ROUND = 1 ] && "
                            "exit 0; echo ${$} > $OUT/pid.$RANK; exec /bin/sleep 1000"));
  const std::vector<pid_t> workers{pid_in("pid.0"), pid_in("pid.1"), pid_in("pid.2")};
  for (const pid_t agent : alive("ddp-agent")) {
    // The tasks are ddp-agent's too.
    if (agent != tasks[1]->pid() && agent != tasks[2]->pid()) ::kill(agent, SIGKILL);
  }
  EXPECT_EQ(statuses(tasks), std::vector<int>(3, 0)) << errors(tasks);
  EXPECT_THAT(tasks[0]->out(),
              HasSubstr("round 1 rank 2 parent " + std::to_string(tasks[2]->pid()) + "."));
  for (const pid_t worker : workers) EXPECT_FALSE(lives(worker));
}

TEST_F(DdpRunSlurm, TheTasksGoWithTheirDdpRun) {
  const auto tasks = start_step({3}, script("echo ${$} > $OUT/pid.$RANK; exec /bin/sleep 1000"));
  for (const char* name : {"pid.0", "pid.1", "pid.2"}) pid_in(name);
  tasks[0]->kill(SIGKILL);
  EXPECT_EQ(tasks[1]->wait(), 72);
  EXPECT_EQ(tasks[2]->wait(), 72);
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunSlurm, ASignalForAllTasksIsOneSignal) {
  // SLURM sends it to every process, and the agent would take its ddp-run's copy for a second one.
  const auto tasks = start_step(
      {2, 2},
      script("trap 'echo $RANK has stopped; exit 0' TERM; echo ${$} > $OUT/pid.$RANK; while "
             ":; do /bin/sleep 0.01; done"));
  for (const char* name : {"pid.0", "pid.1", "pid.2", "pid.3"}) pid_in(name);
  std::vector<pid_t> everybody = alive("ddp-agent");
  for (const pid_t pid : alive("ddp-run")) everybody.push_back(pid);
  for (const pid_t pid : everybody) ::kill(pid, SIGTERM);
  EXPECT_EQ(statuses(tasks), std::vector<int>(4, 128 + SIGTERM)) << errors(tasks);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(tasks[rank < 2 ? 0 : 2]->out(), HasSubstr(std::to_string(rank) + " has stopped"));
  }
}

TEST_F(DdpRunSlurm, AWarningStopsTheJobAndItsStatusSaysThatItGoesOn) {
  const auto tasks = start_step({1, 1}, script("echo ${$} > $OUT/pid.$RANK; exec /bin/sleep 1000"),
                                {{"PATH", "/nowhere"}});
  for (const char* name : {"pid.0", "pid.1"}) pid_in(name);
  for (Process* task : tasks) task->kill(SIGUSR1);
  EXPECT_EQ(statuses(tasks), std::vector<int>(2, 76)) << errors(tasks);
  EXPECT_THAT(tasks[0]->err(), HasSubstr("scontrol is not in PATH here"));
  EXPECT_THAT(tasks[0]->err(), HasSubstr("type: scontrol requeue " + std::to_string(::getpid())));
  EXPECT_THAT(tasks[1]->err(), Not(HasSubstr("requeue")));
}

// As without control groups, where SLURM signals the workers too and one dies before ddp-run knows.
TEST_F(DdpRunSlurm, AWarningThatAWorkerDiesOfIsAWarningToo) {
  const auto tasks = start_step({1, 1}, script("echo ${$} > $OUT/pid.$RANK; exec /bin/sleep 1000"),
                                {{"PATH", "/nowhere"}});
  pid_in("pid.0");
  ::kill(pid_in("pid.1"), SIGUSR1);
  EXPECT_EQ(statuses(tasks), std::vector<int>(2, 76)) << errors(tasks);
  EXPECT_THAT(tasks[0]->err(), HasSubstr("type: scontrol requeue"));
}

TEST_F(DdpRunSlurm, WithoutRequeueAWarningStopsNobody) {
  const auto tasks = start_step(
      {1}, flags_and_script({"--no-requeue", "--no-python"},
                            "echo ${$} > $OUT/pid; while ! [ -s $OUT/go ]; do /bin/sleep 0.01; "
                            "done"));
  pid_in("pid");
  tasks[0]->kill(SIGUSR1);
  folder_.write("go", "now\n");
  EXPECT_EQ(statuses(tasks), std::vector<int>{0}) << errors(tasks);
}

TEST_F(DdpRunSlurm, WhatIsWrongIsSaidOnceANodeAndEndsAllTasks) {
  const auto tasks = start_step({3}, {"--no-python", "/no/such/program"});
  EXPECT_EQ(statuses(tasks), std::vector<int>(3, 127));
  EXPECT_THAT(tasks[0]->err(), HasSubstr("/no/such/program"));
  EXPECT_EQ(tasks[1]->err() + tasks[2]->err(), "");
}

TEST_F(DdpRunSlurm, ANumberOfWorkersThatIsNotThatOfTheTasksIsRefused) {
  const auto tasks = start_step({2}, {"--nproc-per-node", "4", "--no-python", "/bin/true"});
  EXPECT_EQ(statuses(tasks), std::vector<int>(2, 64));
  EXPECT_THAT(tasks[0]->err(), HasSubstr("srun has started 2 tasks on this node"));
}

// `srun -N1 -n1 -w HOST` in a loop over the hosts.
TEST_F(DdpRunSlurm, NodesThatHaveAStepEachMeetWhereTheirFlagsSay) {
  const std::string port = std::to_string(free_port());
  const std::string text = "echo rank $RANK of $WORLD_SIZE, run $TORCHELASTIC_RUN_ID.";
  for (const bool is_static : {true, false}) {
    std::vector<Process*> nodes;
    for (int i = 0; i < 2; ++i) {
      Arguments flags{"--nnodes=2", "--rdzv-endpoint=127.0.0.1:" + port};
      if (is_static) {
        flags = {"--nnodes=2", "--node-rank=" + std::to_string(i), "--master-addr=127.0.0.1",
                 "--master-port=" + port};
      }
      flags.push_back("--no-python");
      nodes.push_back(&start(flags_and_script(flags, text), task_environment({1}, 0, 0)));
    }
    EXPECT_EQ(statuses(nodes), std::vector<int>(2, 0)) << errors(nodes);
    const std::string out = nodes[0]->out() + nodes[1]->out();
    const std::string run = " of 2, run " + std::to_string(::getpid()) + ".0.";
    EXPECT_THAT(out, HasSubstr("rank 0" + run));
    EXPECT_THAT(out, HasSubstr("rank 1" + run));
    if (is_static) {
      EXPECT_THAT(nodes[1]->out(), HasSubstr("rank 1"));
    }
  }
}

TEST_F(DdpRunSlurm, OfNodesThatHaveAStepEachOneAsksForTheNextRun) {
  const std::string port = std::to_string(free_port());
  std::vector<Process*> nodes;
  for (int i = 0; i < 2; ++i) {
    Environment environment = task_environment({1}, 0, 0);
    environment.emplace("PATH", "/nowhere");
    nodes.push_back(
        &start(flags_and_script({"--nnodes=2", "--node-rank=" + std::to_string(i),
                                 "--master-addr=127.0.0.1", "--master-port=" + port, "--no-python"},
                                "echo ${$} > $OUT/pid.$RANK; exec /bin/sleep 1000"),
               environment));
  }
  for (const char* name : {"pid.0", "pid.1"}) pid_in(name);
  for (Process* node : nodes) node->kill(SIGUSR1);
  EXPECT_EQ(statuses(nodes), std::vector<int>(2, 76)) << errors(nodes);
  EXPECT_THAT(nodes[0]->err(), HasSubstr("type: scontrol requeue"));
  EXPECT_THAT(nodes[1]->err(), Not(HasSubstr("requeue")));
}

TEST_F(DdpRunSlurm, InABatchScriptItSaysWhatToType) {
  const Environment batch{{"SLURM_JOB_ID", "17"},
                          {"SLURM_JOB_NUM_NODES", "2"},
                          {"SLURMD_NODENAME", "n1"},
                          {"SLURM_PROCID", "0"}};
  const Finished refused =
      run_job({"--max-restarts", "3", "--no-python", "/bin/echo", "two words", "$x"}, batch);
  EXPECT_EQ(refused.status, 64);
  EXPECT_THAT(refused.err, HasSubstr("type: srun ddp-run --max-restarts 3 --no-python /bin/echo "
                                     "'two words' '$x'\n"));
  EXPECT_EQ(run_job({"--standalone", "--no-python", "/bin/true"}, batch).status, 0);
  Environment one_node = batch;
  one_node["SLURM_JOB_NUM_NODES"] = "1";
  EXPECT_EQ(run_job({"--no-python", "/bin/true"}, one_node).status, 0);
}

}  // namespace
}  // namespace ddp::test
