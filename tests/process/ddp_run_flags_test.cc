// What flags do to real jobs.
#include <algorithm>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DdpRunFlags : public DdpRunTest {
 protected:
  // The lines of a job's output without their prefixes, sorted.
  static std::multiset<std::string> lines(const std::string& out) {
    std::multiset<std::string> found;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) {
      const auto prefix = line.find("] ");
      found.insert(prefix == std::string::npos ? line : line.substr(prefix + 2));
    }
    return found;
  }
  // A worker that lives until release() is called.
  static std::string until_released() { return "while [ ! -e \"$OUT/go\" ]; do sleep 0.05; done"; }
  void release() { folder_.write("go", "\n"); }
};

TEST_F(DdpRunFlags, DevicesAreThoseThatDdpRunSees) {
  const std::map<std::string, std::string> seen{{"CUDA_VISIBLE_DEVICES", "4,5,6,7"}};
  const Arguments echo{"sh", "-c", "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE: $CUDA_VISIBLE_DEVICES"};
  Arguments flags{"--devices", "1,3"};
  flags.insert(flags.end(), echo.begin(), echo.end());
  const Finished plain = run_job(flags, seen);
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(lines(plain.out), (std::multiset<std::string>{"0 of 2: 5,7", "1 of 2: 5,7"}));

  flags.insert(flags.begin(), "--virtual-local-rank");
  const Finished one_each = run_job(flags, seen);
  EXPECT_EQ(one_each.status, 0) << one_each.err;
  EXPECT_EQ(lines(one_each.out), (std::multiset<std::string>{"0 of 2: 5", "0 of 2: 7"}));

  const Finished missing = run_job({"--devices", "1,4", "true"}, seen);
  EXPECT_EQ(missing.status, 64);
  EXPECT_EQ(missing.err,
            "ddp-run: --devices 1,4: there is no device 4; this process sees only 0 to 3\n");
}

TEST_F(DdpRunFlags, NumaBindingGivesEachWorkerItsCores) {
  const Finished all = run_job({"sh", "-c", "grep Cpus_allowed_list /proc/self/status"});
  ASSERT_EQ(all.status, 0) << all.err;
  for (const char* mode : {"node", "socket", "core-complex"}) {
    const Finished job = run_job({"--numa-binding", mode, "true"});
    EXPECT_EQ(job.status, 0) << mode << job.err;
  }
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core cannot be shared out";
  const Finished job = run_job({"--numa-binding", "exclusive", "--nproc-per-node", "2", "sh", "-c",
                                "grep Cpus_allowed_list /proc/self/status"});
  EXPECT_EQ(job.status, 0) << job.err;
  const auto masks = lines(job.out);
  ASSERT_EQ(masks.size(), 2U) << job.out;
  EXPECT_NE(*masks.begin(), *masks.rbegin());
  EXPECT_EQ(masks.count(*lines(all.out).begin()), 0U) << job.out;
}

TEST_F(DdpRunFlags, NumaBindingThatCannotBeIsSaid) {
  const Finished job = run_job({"--numa-binding", "exclusive", "--nproc-per-node", "4000", "true"});
  EXPECT_EQ(job.status, 64);
  EXPECT_THAT(job.err, HasSubstr("--numa-binding exclusive: NUMA node "));
  EXPECT_THAT(job.err, HasSubstr("usable cores for 4000 workers, which must not share cores"));
}

TEST_F(DdpRunFlags, ASignalThatIsNamedEndsTheWorkersByIt) {
  Process& job = start({"--signals-to-handle", "SIGUSR2,USR1", "sh", "-c",
                        "trap 'echo got it; exit 3' USR2; echo > \"$OUT/ready\"; "
                        "while :; do sleep 0.05; done"});
  file("ready");
  job.kill(SIGUSR2);
  EXPECT_EQ(job.wait(), 128 + SIGUSR2) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("got it"));
  // As under torchrun: SIGUSR1 is among them, so it is no longer a request.
  Process& second = start({"--signals-to-handle", "SIGUSR2,USR1", "sh", "-c",
                           "echo > \"$OUT/ready2\"; exec sleep 1000"});
  file("ready2");
  second.kill(SIGUSR1);
  EXPECT_EQ(second.wait(), 128 + SIGUSR1) << second.err();
}

// As seen with torchrun 2.14.1: a warning for each, and workers find the list as it was written.
TEST_F(DdpRunFlags, SignalsThatNobodyKnowsAreToldAndLeftOut) {
  const std::string list = "SIGTERM, SIGNONE,SIGUSR2,";
  Process& job = start({"--signals-to-handle", list, "sh", "-c",
                        "echo \"[$TORCHELASTIC_SIGNALS_TO_HANDLE]\"; echo > \"$OUT/ready\"; "
                        "exec sleep 1000"});
  file("ready");
  job.kill(SIGUSR2);
  EXPECT_EQ(job.wait(), 128 + SIGUSR2) << job.err();
  EXPECT_EQ(job.out(), "[" + list + "]\n");
  for (const char* name : {"SIGNONE", ""}) {
    EXPECT_THAT(job.err(),
                HasSubstr("ddp-run: --signals-to-handle " + list + ": there is no signal '" + name +
                          "', so it is not handled\n"));
  }
  const Finished plain = run_job({"sh", "-c", "echo $TORCHELASTIC_SIGNALS_TO_HANDLE"},
                                 {{"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1"}});
  EXPECT_EQ(plain.out, "SIGTERM,SIGINT,SIGHUP,SIGQUIT\n");
}

TEST_F(DdpRunFlags, TheCheckpointSignalEndsNobody) {
  for (const int signal : {SIGHUP, SIGRTMIN + 1}) {
    const std::string name = "ready." + std::to_string(signal);
    Process& job = start({"--checkpoint-signal", std::to_string(signal), "sh", "-c",
                          "echo > \"$OUT/" + name + "\"; " + until_released() + "; echo through"});
    file(name);
    for (int i = 0; i < 10; ++i) job.kill(signal);
    release();
    EXPECT_EQ(job.wait(), 0) << signal << ": " << job.err();
    EXPECT_THAT(job.out(), HasSubstr("through"));
    ASSERT_TRUE(std::filesystem::remove(folder_.path() / "go"));
  }
}

TEST_F(DdpRunFlags, ANodeLeavesTheExitBarrierAfterItsLimit) {
  const int port = free_port();
  Process& host = start(node(2, port, {"--rdzv-conf", "is_host=1", "sh", "-c", until_released()}));
  Process& other = start(node(2, port, {"--rdzv-conf", "is_host=0", "true"}),
                         {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "0.1"}});
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_THAT(
      other.err(),
      HasSubstr("other nodes did not finish within TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT (0.1 s)"));
  EXPECT_FALSE(host.has_ended()) << host.err();
  release();
  EXPECT_EQ(host.wait(), 0) << host.err();
}

TEST_F(DdpRunFlags, TheHostOfTheRendezvousStaysForTheOthers) {
  const int port = free_port();
  Arguments first = node(2, port, {"--rdzv-conf", "is_host=1", "true"});
  Arguments second = node(2, port, {"--rdzv-conf", "is_host=0", "sh", "-c", until_released()});
  Process& host = start(first, {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "0"}});
  Process& other = start(second);
  EXPECT_TRUE(host.complains("the rendezvous runs here until the others have finished"))
      << host.err();
  EXPECT_FALSE(host.has_ended());
  release();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_EQ(host.wait(), 0) << host.err();
}

TEST_F(DdpRunFlags, EventsAreALineEach) {
  const Finished job =
      run_job({"--event-log-handler", "json:events.json", "--rdzv-id", "j7", "--nproc-per-node",
               "2", "--rdzv-endpoint", "127.0.0.1:" + std::to_string(free_port()), "sh", "-c",
               "[ $RANK = 0 ] || exit 5; exec sleep 1000"});
  EXPECT_EQ(job.status, 5) << job.err;
  std::istringstream text(folder_.read("events.json"));
  std::vector<std::string> seen;
  for (std::string line; std::getline(text, line);) {
    const auto event = nlohmann::json::parse(line);
    const auto& metadata = event.at("metadata");
    EXPECT_EQ(metadata.at("run_id"), "j7");
    EXPECT_GT(event.at("timestamp").get<std::int64_t>(), 1'600'000'000'000);
    EXPECT_EQ(event.at("name"),
              "torchelastic.worker.status." + metadata.at("state").get<std::string>());
    const auto details = nlohmann::json::parse(metadata.at("metadata").get<std::string>());
    seen.push_back(event.at("source").get<std::string>() + " " +
                   metadata.at("state").get<std::string>() + " " +
                   metadata.at("global_rank").dump() + " " +
                   (details.contains("exit_code") ? details.at("exit_code").dump() : "-"));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"AGENT HEALTHY null -", "WORKER FAILED 1 5",
                                            "WORKER TERMINATED 0 -15", "AGENT FAILED null -"}));
}

TEST_F(DdpRunFlags, HealthChecksAreAnswered) {
  const int port = free_port();
  Process& job = start({"sh", "-c", "echo > \"$OUT/ready\"; " + until_released()},
                       {{"TORCHELASTIC_HEALTH_CHECK_PORT", std::to_string(port)}});
  file("ready");
  const Finished asked =
      run({"python3", "-c",
           "import urllib.request; answer = urllib.request.urlopen('http://127.0.0.1:" +
               std::to_string(port) + "/health'); print(answer.status, answer.read().decode())"});
  EXPECT_EQ(asked.status, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("200 {\"status\":\"alive\""));
  EXPECT_THAT(asked.out, HasSubstr("\"round\":0,\"workers\":1}"));
  release();
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST_F(DdpRunFlags, AHealthPortInUseIsNoFailure) {
  ListeningSocket listener;
  const Finished job =
      run_job({"true"}, {{"TORCHELASTIC_HEALTH_CHECK_PORT", std::to_string(listener.port())}});
  EXPECT_EQ(job.status, 0);
  EXPECT_THAT(job.err, HasSubstr("goes on without health checks"));
}

// As torchrun 2.14.1 does: not in the program itself, but in all behind it.
TEST_F(DdpRunFlags, LocalRanksStandInTheProgramsArguments) {
  const Arguments flags{"--nproc-per-node",
                        "2",
                        "--no-python",
                        "sh",
                        "-c",
                        "echo $0 $1 local_rank=$local_rank '$$' '${other}'",
                        "$local_rank",
                        "x${local_rank}"};
  const Finished job = run_job(flags);
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(lines(job.out), (std::multiset<std::string>{"0 x0 local_rank=0 $ ${other}",
                                                        "1 x1 local_rank=1 $ ${other}"}));
  Arguments dry{"--dry-run", "--nproc-per-node", "2", "echo", "a$$b", "${local_rank}"};
  const Finished shown = run_job(dry);
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("worker 0: echo 'a$b' 0\n"), HasSubstr("worker 1: echo 'a$b' 1\n")));
  const Finished standby = run_job({"--standby", "1", "sh", "-c", "echo $local_rank"});
  EXPECT_EQ(standby.status, 64);
  EXPECT_THAT(standby.err, HasSubstr("echo $local_rank: contradicts --standby"));
}

// torchrun starts /tmp/show_0.py where /tmp/show_$local_rank.py was asked for.
TEST_F(DdpRunFlags, EachLocalRankMayHaveAScriptOfItsOwn) {
  for (const char* rank : {"0", "1"})
    folder_.write(std::string("show_") + rank + ".py", std::string("print('script ") + rank + "')");
  const Finished job = run_job({"--nproc-per-node", "2", "show_$local_rank.py"});
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(lines(job.out), (std::multiset<std::string>{"script 0", "script 1"}));
  const Finished missing = run_job({"none_$local_rank.py"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_THAT(missing.err, HasSubstr("none_0.py: there is no such file to run"));
}

// torchrun 2.14.1 has lines of its own with INFO, warnings by default, and neither with ERROR; what
// a failure is about stays.
TEST_F(DdpRunFlags, LoglevelSaysHowMuchDdpRunSays) {
  const Arguments flags{"--log-line-prefix-template", "${what} ", "sh", "-c", "exit 3"};
  const auto said = [&](const std::string& level) {
    const Finished job = run_job(flags, {{"LOGLEVEL", level}});
    EXPECT_EQ(job.status, 3);
    EXPECT_THAT(job.err, HasSubstr("exitcode  : 3")) << level;
    return job.err;
  };
  const std::string warning = "${what} is not known";
  const std::string info = " I ddp-run ";
  for (const char* level : {"WARNING", ""})
    EXPECT_THAT(said(level), AllOf(HasSubstr(warning), Not(HasSubstr(info))));
  EXPECT_THAT(said("INFO"), AllOf(HasSubstr(warning), HasSubstr(info)));
  EXPECT_THAT(said("ERROR"), AllOf(Not(HasSubstr(warning)), Not(HasSubstr(info))));
  EXPECT_THAT(said("bogus"), HasSubstr("LOGLEVEL='bogus' is not a level; use DEBUG, INFO"));
}

// As torch's FileTimerClient writes it.
std::string timer_line(const std::string& pid, const std::string& scope, int expires, int signal) {
  return "printf '{\"version\": 1, \"pid\": %d, \"scope_id\": \"" + scope +
         "\", \"expiration_time\": " + std::to_string(expires) +
         ", \"signal\": " + std::to_string(signal) + "}\\n' " + pid +
         " > \"$TORCHELASTIC_TIMER_FILE\"; ";
}

TEST_F(DdpRunFlags, ATimerThatExpiresEndsItsWorkerAndTheReportSaysSo) {
  const std::map<std::string, std::string> enabled{{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}};
  const Finished job = run_job({"sh", "-c",
                                timer_line("${$}", "later", 2'000'000'000, 9) +
                                    timer_line("${$}", "step 7", 1'000, 9) + "exec sleep 1000"},
                               enabled);
  EXPECT_EQ(job.status, 128 + SIGKILL) << job.err;
  EXPECT_THAT(job.err, HasSubstr("its timer 'step 7' has expired"));

  const Finished released =
      run_job({"sh", "-c",
               timer_line("${$}", "x", 2'000'000'000, 9) + timer_line("${$}", "x", -1, 0) +
                   "[ -p \"$TORCHELASTIC_TIMER_FILE\" ] && echo well"},
              enabled);
  EXPECT_EQ(released.status, 0) << released.err;
  EXPECT_EQ(released.out, "well\n");
}

TEST_F(DdpRunFlags, ATimerOfAStrangerEndsNobody) {
  Process stranger({"sleep", "1000"});
  Process& job = start(
      {"sh", "-c", timer_line(std::to_string(stranger.pid()), "x", 1'000, 9) + until_released()},
      {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}});
  EXPECT_TRUE(job.complains("the process does not belong to this job; it is left alone"))
      << job.err();
  release();
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_FALSE(stranger.has_ended());
}

TEST_F(DdpRunFlags, RunPathRunsAScriptWhateverItsName) {
  folder_.write("train", "import sys\nprint(__name__, sys.argv)\n");
  const Finished job = run_job({"--run-path", "--no-python", "train", "--lr", "1"},
                               {{"PYTHON_EXEC", "/usr/bin/python3"}});
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(job.out, "__main__ ['train', '--lr', '1']\n");
}

TEST_F(DdpRunFlags, ADryRunShowsEverythingAndStartsNothing) {
  const Finished job =
      run_job({"--dry-run", "--nproc-per-node", "2", "--max-restarts", "3", "--log-dir", "logs",
               "--virtual-local-rank", "sh", "-c", "echo > \"$OUT/ran\""});
  EXPECT_EQ(job.status, 0) << job.err;
  for (const char* text :
       {"up to 3", "worker 0: sh -c 'echo > \"$OUT/ran\"'\n", "worker 1: ", "  RANK=0\n",
        "  RANK=1\n", "  WORLD_SIZE=2\n", "  LOCAL_RANK=0\n", "  CUDA_VISIBLE_DEVICES=1\n",
        "  MASTER_ADDR=127.0.0.1\n", "  TORCHELASTIC_MAX_RESTARTS=3\n"}) {
    EXPECT_THAT(job.out, HasSubstr(text));
  }
  EXPECT_THAT(job.out, Not(HasSubstr("DDP_TEST_JOB")));  // Inherited.
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(DdpRunFlags, ADryRunOnHostsShowsEachHostsPartAndAsksNone) {
  // The launch agent would leave a file.
  const Arguments flags{"--dry-run",
                        "--hosts",
                        "a:1,u@b:2",
                        "--launch-agent",
                        "touch " + (folder_.path() / "ran").string(),
                        "--local-addr",
                        "10.0.0.7",
                        "-x",
                        "GIVEN=two words",
                        "-x",
                        "DDP_RDZV_TOKEN",
                        "--max-restarts",
                        "3"};
  Arguments known = flags;
  known.insert(known.end(), {"--no-python", "sh", "-c", "echo $RANK"});
  const std::map<std::string, std::string> token{{"DDP_RDZV_TOKEN", std::string(40, 'f')}};
  const Finished job = run_job(known, token);
  EXPECT_EQ(job.status, 0) << job.err;
  const std::size_t second = job.out.find("\nhost b, node rank 1\n");
  ASSERT_NE(second, std::string::npos) << job.out;
  const std::string b = job.out.substr(second);
  for (const char* text : {"nodes       2\n", "10.0.0.7, port chosen by the system\n", "up to 3\n",
                           "\nhost a, node rank 0\n", "\nworker 0: sh -c 'echo $RANK'\n"}) {
    EXPECT_THAT(job.out.substr(0, second), HasSubstr(text));
  }
  for (const char* text :
       {"started by  touch ", "environment its own and 'GIVEN=two words'\n", "workers     2\n",
        "\nworker 1: ", "\nworker 2: ", "  RANK=2\n", "  LOCAL_RANK=1\n", "  WORLD_SIZE=3\n",
        "  LOCAL_WORLD_SIZE=2\n", "  GROUP_RANK=1\n", "  MASTER_ADDR=10.0.0.7\n",
        "  OMP_NUM_THREADS=(its share of the host's CPUs)\n"}) {
    EXPECT_THAT(b, HasSubstr(text));
  }
  EXPECT_THAT(job.out, Not(HasSubstr("DDP_RDZV_TOKEN")));
  EXPECT_THAT(job.out, Not(HasSubstr("ffff")));
  EXPECT_THAT(job.out, Not(HasSubstr("worker 3")));

  Arguments counted = flags;
  counted[2] = "a,u@b:2";
  counted.insert(counted.end(), {"--nproc-per-node", "gpu", "train.py"});
  const Finished open = run_job(counted, token);
  EXPECT_EQ(open.status, 0) << open.err;
  EXPECT_THAT(open.out, HasSubstr("workers     one for each CUDA device of the host\n"));
  EXPECT_THAT(open.out, HasSubstr("train.py\n"));
  EXPECT_THAT(open.out, Not(HasSubstr("RANK=")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// Real bash, with the words as readline would break them.
TEST_F(DdpRunFlags, BashCompletesFlagsAndValues) {
  struct Case {
    std::vector<std::string> words;  // The last one is being completed.
    std::vector<std::string> some;   // Of what is offered.
    std::vector<std::string> none;   // What is not.
  };
  const Finished script = run_job({"--print-completion", "bash"});
  ASSERT_EQ(script.status, 0) << script.err;
  const std::string path = folder_.write("completion", script.out);
  folder_.write("train.py", "");
  for (const Case& c : std::vector<Case>{
           {{"--nn"}, {"--nnodes"}, {"--node-rank"}},
           {{"--nproc_"}, {"--nproc_per_node"}, {"--nproc-per-node"}},
           {{"--rdzv-backend", ""}, {"c10d", "static", "etcd"}, {"--nnodes"}},
           {{"--rdzv_backend", "=", "e"}, {"etcd"}, {"c10d"}},
           {{"--numa-binding", "="}, {"node", "core-complex"}, {}},
           {{"--nnodes", "2", "--stand"}, {"--standalone", "--standby"}, {}},
           {{"--hostfile", "tr"}, {"train.py"}, {}},
           {{"--standalone", "train.py", "--nn"}, {}, {"--nnodes"}},
           {{"--standalone", "tra"}, {"train.py"}, {}},
       }) {
    std::string words = "ddp-run";
    for (const std::string& word : c.words) words += " '" + word + "'";
    const Finished bash = run({"bash", "-c",
                               "source " + path + "; COMP_WORDS=(" + words +
                                   "); COMP_CWORD=" + std::to_string(c.words.size()) +
                                   "; _ddp_run; printf '%s\\n' \"${COMPREPLY[@]}\""},
                              {.environment = {}, .folder = folder_.path()});
    SCOPED_TRACE(words);
    EXPECT_EQ(bash.err, "");
    std::istringstream text(bash.out);
    std::set<std::string> offered;
    for (std::string line; std::getline(text, line);) offered.insert(line);
    for (const std::string& word : c.some) EXPECT_TRUE(offered.contains(word)) << word;
    for (const std::string& word : c.none) EXPECT_FALSE(offered.contains(word)) << word;
  }
}

TEST_F(DdpRunFlags, ADryRunKnowsWhoMakesTheStore) {
  const Finished plan =
      run_job({"--dry-run", "--standalone", "sh"}, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}});
  EXPECT_EQ(plan.status, 0) << plan.err;
  for (const char* line :
       {"  MASTER_PORT=(a free port of node 0)\n", "  DDP_STORE_PORT=(the rendezvous' port)\n",
        "  TORCHELASTIC_USE_AGENT_STORE=False\n"}) {
    EXPECT_THAT(plan.out, HasSubstr(line));
  }
}

}  // namespace
}  // namespace ddp::test
