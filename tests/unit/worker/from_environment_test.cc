#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <new>
#include <string>

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/errc.h"
#include "common/wire/shm_layout.h"
#include "launcher/server/server.h"
#include "tests/support/worker_world.h"
#include "worker/runtime/mpi_variables.h"
#include "worker/runtime/srun_tasks.h"

// Groups built as workers build them: from processes, their environment, the agent's memory and the
// daemon's store.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

WorkerEnvironment read(const Variables& variables) {
  return read_worker_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return {};
    return found->second;
  });
}

const Variables kTwoNodes = {{"RANK", "2"},
                             {"WORLD_SIZE", "3"},
                             {"LOCAL_RANK", "0"},
                             {"LOCAL_WORLD_SIZE", "1"},
                             {"GROUP_RANK", "1"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"DDP_ROUND", "4"},
                             {"DDP_SHM_FD", "9"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_RUN_ID", "job"}};

TEST(WorkerEnvironment, IsReadWhole) {
  const WorkerEnvironment worker = read(kTwoNodes);
  EXPECT_EQ(worker.rank, 2);
  EXPECT_EQ(worker.world_size, 3);
  EXPECT_EQ(worker.local_size, 1);
  EXPECT_EQ(worker.node, 1);
  EXPECT_EQ(worker.nodes, 2);
  EXPECT_EQ(worker.round, 4);
  EXPECT_EQ(worker.shm_fd, 9);
  EXPECT_EQ(worker.master_port, 29400);
  EXPECT_EQ(worker.run_id, "job");
}

TEST(WorkerEnvironment, WithoutAWorldSizeItIsAWorldOfOne) {
  EXPECT_EQ(read({{"RANK", "7"}}).world_size, 1);
}

TEST(WorkerEnvironment, AnotherLaunchersRanksAreNodes) {
  const Variables variables = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "a"},
                               {"MASTER_PORT", "1"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "3"}};
  const WorkerEnvironment worker = read(variables);
  EXPECT_EQ(worker.nodes, 2);
  EXPECT_EQ(worker.node, 1);
  EXPECT_EQ(worker.local_size, 1);
  EXPECT_EQ(worker.round, 3);
}

// What a program sees that mpirun has started without ddp-run.
std::optional<std::string> under_mpi(const std::string& name, const Variables& changes) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "77"}};
  for (const auto& [changed, value] : changes) variables[changed] = value;
  return runtime::mpi_variable(
      [&](const std::string& wanted) -> std::optional<std::string> {
        const auto found = variables.find(wanted);
        if (found == variables.end()) return {};
        return found->second;
      },
      name);
}

TEST(WorkerEnvironment, MpirunsVariablesStandForTheUsualOnes) {
  EXPECT_EQ(under_mpi("RANK", {}), "3");
  EXPECT_EQ(under_mpi("WORLD_SIZE", {}), "4");
  EXPECT_EQ(under_mpi("LOCAL_RANK", {}), "3");
  EXPECT_EQ(under_mpi("LOCAL_WORLD_SIZE", {}), "4");
  EXPECT_EQ(under_mpi("MASTER_ADDR", {}), "127.0.0.1");
  const auto port = under_mpi("MASTER_PORT", {});
  EXPECT_NE(port, under_mpi("MASTER_PORT", {{"PMIX_NAMESPACE", "78"}}));
  EXPECT_EQ(port, under_mpi("MASTER_PORT", {{"OMPI_COMM_WORLD_RANK", "0"}}));
  EXPECT_EQ(under_mpi("MASTER_PORT", {{"MASTER_ADDR", "n1"}}), "29500");
  // On several machines somebody has to name one.
  EXPECT_EQ(under_mpi("MASTER_ADDR",
                      {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}),
            std::nullopt);
  EXPECT_EQ(under_mpi("GROUP_RANK", {}), std::nullopt);
}

TEST(WorkerEnvironment, MpirunHasNoSayInWorkersOfALauncher) {
  for (const char* own : {"WORLD_SIZE", "DDP_NODE_ID", "DDP_STANDBY"})
    EXPECT_EQ(under_mpi("RANK", {{own, "1"}}), std::nullopt) << own;
  EXPECT_EQ(under_mpi("RANK", {{"OMPI_COMM_WORLD_RANK", "0"},
                               {"OMPI_COMM_WORLD_SIZE", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}),
            std::nullopt);
  EXPECT_THROW(under_mpi("RANK", {{"OMPI_COMM_WORLD_RANK", "4"}}), std::invalid_argument);
}

TEST(WorkerEnvironment, EveryFaultNamesItsVariable) {
  const auto complaint = [](Variables changes) {
    Variables variables = kTwoNodes;
    for (auto& [name, value] : changes) {
      if (value == "(unset)") {
        variables.erase(name);
      } else {
        variables[name] = value;
      }
    }
    try {
      read(variables);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(complaint({{"WORLD_SIZE", "three"}}),
            "WORLD_SIZE=three: expected a number from 1 to 1048576");
  EXPECT_EQ(complaint({{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: expected a number from 1 to 1048576");
  EXPECT_EQ(complaint({{"RANK", "3"}}), "RANK=3: expected a number from 0 to 2");
  EXPECT_EQ(complaint({{"RANK", "(unset)"}}), "RANK is not set; start the program with ddp-run");
  EXPECT_EQ(complaint({{"LOCAL_RANK", "1"}}), "LOCAL_RANK=1: expected a number from 0 to 0");
  EXPECT_EQ(complaint({{"LOCAL_WORLD_SIZE", "4"}}),
            "LOCAL_WORLD_SIZE=4: expected a number from 1 to 3");
  EXPECT_EQ(complaint({{"GROUP_RANK", "2"}}), "GROUP_RANK=2: expected a number from 0 to 1");
  EXPECT_EQ(complaint({{"GROUP_WORLD_SIZE", "1"}, {"GROUP_RANK", "0"}}),
            "LOCAL_WORLD_SIZE=1: expected WORLD_SIZE (3), as GROUP_WORLD_SIZE is 1");
  EXPECT_EQ(complaint({{"DDP_ROUND", "-1"}}),
            "DDP_ROUND=-1: expected a number from 0 to 9223372036854775807");
  EXPECT_EQ(complaint({{"DDP_SHM_FD", "x"}}),
            "DDP_SHM_FD=x: expected a number from 0 to 2147483647");
  EXPECT_EQ(complaint({{"MASTER_PORT", "0"}}), "MASTER_PORT=0: expected a number from 1 to 65535");
  EXPECT_EQ(complaint({{"MASTER_ADDR", "(unset)"}}),
            "MASTER_ADDR is not set; start the program with ddp-run");
  EXPECT_THAT(complaint({{"DDP_SHM_FD", "(unset)"}}), HasSubstr("start the program with ddp-run"));
}

// The daemon in a process of its own, so that this one stays without threads and may fork.
class StoreProcess {
 public:
  StoreProcess() {
    int ends[2];
    DDP_CHECK(::pipe(ends) == 0);
    child_ = ::fork();
    if (child_ == 0) {
      asio::io_context io;
      server::ServerOptions options;
      options.bind_address = "127.0.0.1";
      auto server = server::Server::listen(io, options);
      const int port = server ? (*server)->port() : 0;
      (void)!::write(ends[1], &port, sizeof(port));
      io.run();
      ::_exit(0);
    }
    DDP_CHECK(::read(ends[0], &port_, sizeof(port_)) == static_cast<ssize_t>(sizeof(port_)) &&
              port_ > 0);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~StoreProcess() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  int port() const { return port_; }

 private:
  pid_t child_ = -1;
  int port_ = 0;
};

int agent_memory(int local_size, Round round) {
  const int fd = ::memfd_create("ddp-test", 0);
  DDP_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(wire::shm_bytes(local_size))) == 0);
  wire::ShmHeader header;
  header.size_bytes = wire::shm_bytes(local_size);
  header.local_size = local_size;
  header.round = round;
  DDP_CHECK(::pwrite(fd, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)));
  return fd;
}

void set(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

// Forks the workers of the given nodes, with the environment that agents give; `absent` ranks are
// left out. port 0: no store. Without memory the workers are like those of another launcher.
TEST(SrunTasks, EachOnItsOwnIsWarnedOf) {
  std::map<std::string, std::string> variables = {{"SLURM_STEP_ID", "0"},
                                                  {"SLURM_PROCID", "0"},
                                                  {"SLURM_STEP_NUM_NODES", "2"},
                                                  {"SLURM_STEP_NUM_TASKS", "4"}};
  const Lookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return {};
    return found->second;
  };
  EXPECT_EQ(runtime::srun_tasks(lookup).all, 4);
  EXPECT_EQ(runtime::srun_tasks(lookup).nodes, 2);
  EXPECT_NE(runtime::notice_of_lone_tasks(lookup).find("srun has started 4 tasks"),
            std::string::npos);
  variables["SLURM_PROCID"] = "1";  // One says it for all.
  EXPECT_EQ(runtime::notice_of_lone_tasks(lookup), "");
  variables["SLURM_PROCID"] = "0";
  variables["WORLD_SIZE"] = "4";
  EXPECT_EQ(runtime::notice_of_lone_tasks(lookup), "");
  variables.erase("WORLD_SIZE");
  variables["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(runtime::notice_of_lone_tasks(lookup), "");
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(runtime::srun_tasks(lookup).all, 0);
}

std::vector<pid_t> start_workers(const std::vector<int>& nodes, int port, bool memory,
                                 const std::function<int()>& body,
                                 const std::vector<Rank>& absent = {}) {
  constexpr Round kRound = 2;
  std::vector<int> memories;
  for (const int size : nodes) memories.push_back(memory ? agent_memory(size, kRound) : -1);
  std::vector<pid_t> children;
  for (Rank rank = 0; rank < test::world_size_of(nodes); ++rank) {
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
    const pid_t child = ::fork();
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    const transport::Topology place(nodes, rank);
    set("RANK", std::to_string(rank));
    set("WORLD_SIZE", std::to_string(place.world_size()));
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(port));
    set("TORCHELASTIC_RUN_ID", "test");
    set("TORCHELASTIC_USE_AGENT_STORE", "True");
    set("TORCHELASTIC_RESTART_COUNT", std::to_string(kRound));
    if (memory) {
      set("LOCAL_RANK", std::to_string(place.local_rank()));
      set("LOCAL_WORLD_SIZE", std::to_string(place.local_size()));
      set("GROUP_RANK", std::to_string(place.node()));
      set("GROUP_WORLD_SIZE", std::to_string(place.nodes()));
      set("DDP_ROUND", std::to_string(kRound));
      set("DDP_SHM_FD", std::to_string(memories[static_cast<std::size_t>(place.node())]));
    }
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::_exit(status);
  }
  for (const int fd : memories) ::close(fd);
  return children;
}

void expect_all(const std::vector<pid_t>& children, int status) {
  for (const pid_t child : children) EXPECT_EQ(test::reap(child, seconds(30)), status);
}

int sum_of_ranks() {
  const auto group = ProcessGroup::from_environment();
  for (const std::size_t count : {std::size_t{3}, std::size_t{200'000}}) {
    std::vector<double> values(count, group->rank());
    group->all_reduce({values.data(), count, DType::kF64}, ReduceOp::kSum)->wait();
    const double expected = group->size() * (group->size() - 1) / 2.0;
    if (values.front() != expected || values.back() != expected) return 1;
  }
  return group->round() == 2 ? 0 : 2;
}

TEST(FromEnvironment, AloneWithoutAnything) {
  for (const char* name : {"RANK", "WORLD_SIZE", "DDP_SHM_FD"}) ::unsetenv(name);
  const auto group = ProcessGroup::from_environment();
  EXPECT_EQ(group->size(), 1);
  float value = 3;
  group->all_reduce({&value, 1, DType::kF32}, ReduceOp::kAvg)->wait();
  EXPECT_EQ(value, 3);
}

TEST(FromEnvironment, OneNodeNeedsNoStore) {
  expect_all(start_workers({3}, 1, true, sum_of_ranks), 0);
}

TEST(FromEnvironment, NodesMeetThroughTheStore) {
  for (const std::vector<int>& nodes :
       {std::vector<int>{2, 2}, std::vector<int>{2, 1}, std::vector<int>{1, 1, 1}}) {
    const StoreProcess store;
    expect_all(start_workers(nodes, store.port(), true, sum_of_ranks), 0);
  }
}

TEST(FromEnvironment, WorkersOfAnotherLauncherMeetThroughItsStore) {
  const StoreProcess store;
  expect_all(start_workers({1, 1, 1}, store.port(), false, sum_of_ranks), 0);
}

TEST(FromEnvironment, AGroupAfterAnother) {
  const StoreProcess store;
  expect_all(start_workers({2, 1}, store.port(), true,
                           [] {
                             for (int turn = 0; turn < 3; ++turn) {
                               if (const int status = sum_of_ranks(); status != 0) return status;
                             }
                             return 0;
                           }),
             0);
}

// Expects that the group does not come about, for the reason that check() accepts.
std::function<int()> failing(const std::function<bool(const CollectiveError&)>& check) {
  return [check] {
    ProcessGroupOptions options;
    options.connect_timeout = seconds(5);
    try {
      ProcessGroup::from_environment(options);
    } catch (const CollectiveError& error) {
      if (check(error)) return 0;
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
    return 2;
  };
}

bool says(const CollectiveError& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

TEST(FromEnvironment, MissingRanksOfANodeAreNamed) {
  const auto check = [](const CollectiveError& error) {
    return error.code == Errc::kTimeout && error.suspect_rank == 1 &&
           says(error, "barrier #0 (all ranks present)") &&
           says(error, "arrived: rank 0, 2; not arrived: rank 1");
  };
  // Both notice it at about the same time, and the first one's words count.
  expect_all(start_workers({3}, 1, true, failing(check), {1}), 0);
}

TEST(FromEnvironment, MissingRanksOfOtherNodesAreNamed) {
  const StoreProcess store;
  const auto check = [](const CollectiveError& error) {
    return error.code == Errc::kTimeout && error.suspect_rank == 2 &&
           says(error, "of 4 ranks, rank 2, 3 did not arrive");
  };
  expect_all(start_workers({2, 2}, store.port(), true, failing(check), {2, 3}), 0);
}

TEST(FromEnvironment, AStoreThatIsNotThereIsNamed) {
  const auto check = [](const CollectiveError& error) {
    return says(error, "MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  };
  expect_all(start_workers({1, 1}, 1, true, failing(check)), 0);
}

TEST(FromEnvironment, MemoryOfAnotherRoundIsRefused) {
  const auto body = [] {
    set("DDP_ROUND", "3");
    return failing([](const CollectiveError& error) {
      return error.code == Errc::kStale &&
             says(error, "DDP_SHM_FD belongs to round 2, but this worker to round 3");
    })();
  };
  expect_all(start_workers({2}, 1, true, body), 0);
}

TEST(WorkerEnvironment, TheStoreOfTheRendezvousIsWhereMasterIsRankZeros) {
  Variables variables = kTwoNodes;
  variables["DDP_STORE_ADDR"] = "10.0.0.9";
  variables["DDP_STORE_PORT"] = "29401";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(read(variables).master_addr, "10.0.0.9");
  EXPECT_EQ(read(variables).master_port, 29'401);
  // Left over from a round that had both, or from a launcher above.
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(read(variables).master_addr, "localhost");
  EXPECT_EQ(read(variables).master_port, 29'400);
}

}  // namespace
}  // namespace ddp
