#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_error.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/program.h"

namespace ddp::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

machine::Machine machine(int cores = 6, int gpus = 0) {
  return machine::Machine{"n7", [cores] { return cores; },
                          [gpus](std::string_view) { return gpus; },
                          [](const std::string& host) {
                            if (host == "localhost")
                              return machine::HostPlace{true, true, "127.0.0.1"};
                            if (host == "here") return machine::HostPlace{true, false, "10.0.0.7"};
                            return machine::HostPlace{false, false, host};
                          },
                          [] {
                            return std::vector<std::string>{"4", "5", "GPU-6"};
                          }};
}

// What is said about options that this machine cannot fulfil.
std::string refusal(const flags::Options& options) {
  const auto plan = plan_job(options, machine());
  EXPECT_FALSE(plan);
  if (plan) return "";
  EXPECT_EQ(exit_code_of(plan.error()), kExitInvalidValue);
  return plan.error().message;
}

flags::Options options_for(const std::string& program) {
  flags::Options options;
  options.spec.program = program;
  return options;
}

flags::Options with_endpoint(const std::string& host, int port, int node_rank = -1) {
  flags::Options options = options_for("train");
  options.spec.rules.min_nodes = options.spec.rules.max_nodes = 2;
  options.endpoint = HostPort{host, port};
  options.endpoint_flag = "--rdzv-endpoint " + host;
  options.spec.node_rank = node_rank;
  return options;
}

TEST(JobPlan, AloneItHostsOnLoopback) {
  const auto plan = plan_job(options_for("train"), machine());
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->host);
  EXPECT_EQ(plan->bind_address, "127.0.0.1");
  EXPECT_EQ(plan->spec.coordinator_host, "127.0.0.1");
  EXPECT_EQ(plan->spec.coordinator_port, 0);
  EXPECT_EQ(plan->spec.host, "n7");
  EXPECT_EQ(plan->spec.job_id.size(), 16U);
  EXPECT_NE(plan->spec.job_id, plan_job(options_for("train"), machine())->spec.job_id);
  EXPECT_NE(plan->spec.node_id, plan_job(options_for("train"), machine())->spec.node_id);
  EXPECT_THAT(plan->spec.command, ElementsAre("train"));
}

TEST(JobPlan, TheEndpointsMachineHosts) {
  EXPECT_TRUE(plan_job(with_endpoint("here", 1), machine())->host);
  EXPECT_TRUE(plan_job(with_endpoint("here", 1, 0), machine())->host);
  EXPECT_FALSE(plan_job(with_endpoint("here", 1, 1), machine())->host);
  EXPECT_FALSE(plan_job(with_endpoint("there", 1), machine())->host);
  EXPECT_FALSE(plan_job(with_endpoint("there", 1, 0), machine())->host);
  flags::Options forced = with_endpoint("there", 1, 1);
  forced.is_host = true;
  EXPECT_TRUE(plan_job(forced, machine())->host);
  flags::Options forbidden = with_endpoint("here", 1, 0);
  forbidden.is_host = false;
  EXPECT_FALSE(plan_job(forbidden, machine())->host);
}

TEST(JobPlan, AWishForARankSaysNothingOfWhoHosts) {
  flags::Options options = with_endpoint("here", 1, 1);
  options.spec.node_rank_is_wish = true;
  const auto plan = plan_job(options, machine());
  EXPECT_TRUE(plan->host);
  EXPECT_TRUE(plan->spec.node_rank_is_wish);
  options.endpoint->host = "there";
  EXPECT_FALSE(plan_job(options, machine())->host);
}

// A NAT's address, or a service's.
TEST(JobPlan, NodeZeroHostsAtAMasterAddressThatIsNotItsOwn) {
  machine::Machine here = machine();
  here.host_name = "here";
  flags::Options options = with_endpoint("service", 7, 0);
  options.endpoint_is_master = true;
  const auto plan = plan_job(options, here);
  EXPECT_TRUE(plan->host);
  EXPECT_EQ(plan->bind_address, "");
  EXPECT_EQ(plan->spec.coordinator_host, "10.0.0.7");
  EXPECT_EQ(plan->spec.coordinator_port, 7);
  EXPECT_EQ(plan->outside_address, "service") << "another daemon may answer there";

  flags::Options forbidden = options;
  forbidden.is_host = false;
  EXPECT_FALSE(plan_job(forbidden, here)->host);
  EXPECT_EQ(plan_job(forbidden, here)->spec.coordinator_host, "service");
  flags::Options by_slurm = options;
  by_slurm.node_rank_is_schedulers = true;
  EXPECT_FALSE(plan_job(by_slurm, here)->host);
  for (const int other_rank : {-1, 1}) {
    options.spec.node_rank = other_rank;
    EXPECT_FALSE(plan_job(options, here)->host);
    EXPECT_EQ(plan_job(options, here)->outside_address, "");
  }
}

TEST(JobPlan, BindsLoopbackOnlyForALoopbackEndpoint) {
  const auto loopback = plan_job(with_endpoint("localhost", 7), machine());
  EXPECT_EQ(loopback->bind_address, "127.0.0.1");
  EXPECT_EQ(loopback->spec.coordinator_host, "127.0.0.1");
  EXPECT_EQ(loopback->spec.coordinator_port, 7);
  EXPECT_EQ(loopback->spec.job_id, "none");
  const auto network = plan_job(with_endpoint("here", 7), machine());
  EXPECT_EQ(network->bind_address, "");
  EXPECT_EQ(network->spec.coordinator_host, "10.0.0.7");
}

TEST(JobPlan, OneNodeWithoutATokenKeepsToLoopback) {
  flags::Options options = with_endpoint("here", 7);
  options.spec.rules.min_nodes = options.spec.rules.max_nodes = 1;
  const auto alone = plan_job(options, machine());
  EXPECT_EQ(alone->bind_address, "127.0.0.1");
  EXPECT_EQ(alone->spec.coordinator_host, "127.0.0.1");
  EXPECT_EQ(alone->outside_address, "10.0.0.7");
  options.rdzv_token = Secret("a token of this test");
  const auto guarded = plan_job(options, machine());
  EXPECT_EQ(guarded->bind_address, "");
  EXPECT_EQ(guarded->spec.coordinator_host, "10.0.0.7");
  EXPECT_EQ(guarded->outside_address, "");
  EXPECT_EQ(guarded->spec.rdzv_token.reveal(), "a token of this test");
}

TEST(JobPlan, WarnsOfARendezvousThatIsOpenToAll) {
  config::JobSpec spec;
  EXPECT_THAT(warning_if_open(spec, ""), HasSubstr("--rdzv-token-file"));
  EXPECT_EQ(warning_if_open(spec, "127.0.0.1"), "");
  EXPECT_EQ(warning_if_open(spec, "::1"), "");
  spec.rdzv_token = Secret("a token of this test");
  EXPECT_EQ(warning_if_open(spec, ""), "");
}

TEST(JobPlan, PortZeroNeedsTheHost) {
  const auto plan = plan_job(with_endpoint("there", 0), machine());
  ASSERT_FALSE(plan);
  EXPECT_EQ(exit_code_of(plan.error()), kExitInvalidValue);
  EXPECT_EQ(plan.error().message,
            "--rdzv-endpoint there: port 0 is only for a rendezvous that runs in this ddp-run; "
            "write a port");
}

TEST(JobPlan, CountsWorkers) {
  using Kind = flags::ProcessCount::Kind;
  struct Case {
    Kind kind;
    int gpus;
    int workers;
  };
  for (const Case& c : {Case{Kind::kNumber, 4, 3}, Case{Kind::kAuto, 4, 4}, Case{Kind::kAuto, 0, 6},
                        Case{Kind::kCpu, 4, 6}, Case{Kind::kAccelerator, 4, 4}}) {
    flags::Options options = options_for("train");
    options.nproc = {c.kind, 3};
    EXPECT_EQ(plan_job(options, machine(6, c.gpus))->spec.nproc, c.workers);
  }
  flags::Options options = options_for("train");
  options.nproc = {Kind::kAccelerator, 0};
  const auto plan = plan_job(options, machine(6, 0));
  ASSERT_FALSE(plan);
  EXPECT_EQ(exit_code_of(plan.error()), kExitInvalidValue);
  EXPECT_THAT(plan.error().message,
              HasSubstr("--nproc-per-node gpu: this machine has no CUDA device"));
  options.nproc = {Kind::kAccelerator, 0, "hpu"};
  EXPECT_EQ(refusal(options),
            "--nproc-per-node hpu: this machine has no Gaudi that may be used (/sys/class/accel, "
            "/dev/hl*, HABANA_VISIBLE_MODULES); write a number, cpu or auto");
  machine::Machine asked = machine();
  asked.accelerators = [](std::string_view name) { return name == "hpu" ? 8 : 0; };
  EXPECT_EQ(plan_job(options, asked)->spec.nproc, 8);
}

TEST(JobPlan, DevicesAreNumberedAmongThoseThatAreSeen) {
  flags::Options options = options_for("train");
  options.nproc.kind = flags::ProcessCount::Kind::kAccelerator;
  options.devices = {"2", "0", "GPU-x"};
  options.devices_flag = "--devices 2,0,GPU-x";
  const auto plan = plan_job(options, machine());
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->spec.devices, ElementsAre("GPU-6", "4", "GPU-x"));
  EXPECT_EQ(plan->spec.nproc, 3);
  options.nproc = {flags::ProcessCount::Kind::kNumber, 8};
  EXPECT_EQ(plan_job(options, machine())->spec.nproc, 8);
  options.devices = {"3"};
  EXPECT_EQ(refusal(options),
            "--devices 2,0,GPU-x: there is no device 3; this process sees only 0 to 2");
  machine::Machine none = machine();
  none.cuda_device_names = [] { return std::vector<std::string>(); };
  EXPECT_THAT(plan_job(options, none).error().message,
              HasSubstr("this machine has no CUDA device that may be used"));
}

TEST(JobPlan, AVirtualLocalRankNeedsADeviceForEachWorker) {
  flags::Options options = options_for("train");
  options.spec.virtual_local_rank = true;
  options.nproc = {flags::ProcessCount::Kind::kNumber, 3};
  EXPECT_THAT(plan_job(options, machine())->spec.devices, ElementsAre("4", "5", "GPU-6"));
  options.nproc.number = 4;
  EXPECT_THAT(refusal(options), HasSubstr("4 workers need a device each, but there are 3"));
  machine::Machine none = machine();
  none.cuda_device_names = [] { return std::vector<std::string>(); };
  EXPECT_TRUE(plan_job(options, none));
}

TEST(JobPlan, TheRestReachesTheAgent) {
  flags::Options options = options_for("train");
  options.spec.exit_barrier_ms = 5;
  options.spec.signals = {SIGTERM};
  options.spec.signals_to_handle = "TERM,XYZ";
  options.spec.checkpoint_signal = SIGUSR2;
  options.spec.numa_binding = "node";
  options.event_log = "json:events.json";
  const auto plan = plan_job(options, machine());
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->spec.exit_barrier_ms, 5);
  EXPECT_THAT(plan->spec.signals, ElementsAre(SIGTERM));
  EXPECT_EQ(plan->spec.signals_to_handle, "TERM,XYZ");
  EXPECT_EQ(plan->spec.checkpoint_signal, SIGUSR2);
  EXPECT_EQ(plan->spec.numa_binding, "node");
  EXPECT_EQ(plan->spec.usable_cores, 6);
  EXPECT_EQ(plan->spec.event_log,
            "json:" + (std::filesystem::current_path() / "events.json").string());
  const auto copy = config::decode_job_spec(config::encode(plan->spec));
  ASSERT_TRUE(copy);
  EXPECT_EQ(config::encode(*copy), config::encode(plan->spec));
}

TEST(JobPlan, ADryRunMakesNoFolder) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("ddp_run_dry_" + std::to_string(::getpid()));
  flags::Options options = options_for("train");
  options.log_dir = folder;
  options.spec.dry_run = true;
  const auto plan = plan_job(options, machine());
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->spec.log_dir, folder.string());
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(JobPlan, LogDirIsMadeOrRefused) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       ("ddp_run_job_plan_" + std::to_string(::getpid()));
  flags::Options options = options_for("train");
  options.log_dir = folder / "a/b";
  const auto plan = plan_job(options, machine());
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->spec.log_dir, (folder / "a/b").string());
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b"));

  std::ofstream(folder / "file") << "x";
  options.log_dir = folder / "file";
  const auto refused = plan_job(options, machine());
  ASSERT_FALSE(refused);
  EXPECT_EQ(exit_code_of(refused.error()), kExitInvalidValue);
  EXPECT_THAT(refused.error().message, HasSubstr("--log-dir " + (folder / "file").string()));
  EXPECT_THAT(refused.error().message, HasSubstr("Not a directory"));
  std::filesystem::remove_all(folder);
}

TEST(WorkerCommand, PythonOnlyWhereItIsMeant) {
  flags::Options script = options_for("dir/train.py");
  script.arguments = {"--lr", "1"};
  EXPECT_THAT(worker_command(script), ElementsAre("python3", "-u", "dir/train.py", "--lr", "1"));
  script.no_python = true;
  EXPECT_THAT(worker_command(script), ElementsAre("dir/train.py", "--lr", "1"));
  flags::Options module = options_for("pkg.train");
  module.module = true;
  module.python = "/opt/python";
  EXPECT_THAT(worker_command(module), ElementsAre("/opt/python", "-u", "-m", "pkg.train"));
  EXPECT_THAT(worker_command(options_for("./train")), ElementsAre("./train"));
  flags::Options run_path = options_for("train");
  run_path.run_path = true;
  run_path.module = run_path.no_python = true;  // It wins over both.
  run_path.arguments = {"x"};
  EXPECT_THAT(worker_command(run_path),
              ElementsAre("python3", "-u", "-c", HasSubstr("runpy.run_path"), "train", "x"));
}

class CheckProgram : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("ddp_run_program_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_ / "folder");
    write("runs", 0755);
    write("text", 0644);
    write("train.py", 0644);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, unsigned mode) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n";
    std::filesystem::permissions(folder_ / name, static_cast<std::filesystem::perms>(mode));
  }
  // The exit status it leads to, and the message.
  std::pair<int, std::string> check(flags::Options options) {
    options.search_path = "/nonexistent:" + folder_.string();
    const auto result = check_program(options);
    return result ? std::pair(0, std::string())
                  : std::pair(exit_code_of(result.error()), result.error().message);
  }
  std::string path(const std::string& name) { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

TEST_F(CheckProgram, FindsWhatExecvpFinds) {
  EXPECT_EQ(check(options_for("runs")).first, 0);
  EXPECT_EQ(check(options_for(path("runs"))).first, 0);
  EXPECT_EQ(check(options_for("missing")),
            std::pair(127, std::string("missing: there is no such program in PATH")));
  EXPECT_EQ(check(options_for("./missing")),
            std::pair(127, std::string("./missing: there is no such program")));
  EXPECT_EQ(check(options_for("text")),
            std::pair(126, path("text") + ": cannot be executed; try chmod +x " + path("text")));
  EXPECT_EQ(check(options_for(path("folder"))),
            std::pair(126, path("folder") + ": is a folder without __main__.py, not a program"));
}

TEST_F(CheckProgram, AMistypedSubcommandIsNamed) {
  const auto message = [this](const char* typed) { return check(options_for(typed)).second; };
  EXPECT_EQ(message("chek"), "chek: there is no such program in PATH; did you mean ddp-run check?");
  EXPECT_THAT(message("stauts"), HasSubstr("did you mean ddp-run status?"));
  EXPECT_THAT(message("dmeo"), HasSubstr("did you mean ddp-run demo?"));
  EXPECT_THAT(message("tpo"), HasSubstr("did you mean ddp-run top?"));
  EXPECT_THAT(message("tope"), HasSubstr("did you mean ddp-run top?"));
  for (const char* other : {"foo", "train", "mpi", "./chek"})
    EXPECT_THAT(message(other), Not(HasSubstr("did you mean")));
}

TEST_F(CheckProgram, PythonNeedsInterpreterAndScript) {
  flags::Options script = options_for(path("train.py"));
  script.python = "runs";
  EXPECT_EQ(check(script).first, 0);
  script.spec.program = path("gone.py");
  EXPECT_EQ(check(script),
            std::pair(127, path("gone.py") + ": there is no such file to run under runs"));
  script.python = "no-python-here";
  EXPECT_EQ(
      check(script),
      std::pair(127, std::string(
                         "no-python-here: there is no such program in PATH; PYTHON_EXEC names the "
                         "interpreter if it is not python3")));
}

}  // namespace
}  // namespace ddp::plan
