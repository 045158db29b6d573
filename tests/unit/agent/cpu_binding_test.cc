#include "agent/process/cpu_binding.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Cpus = std::vector<int>;

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("7\n"), ElementsAre(7));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("x"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("3-1"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("0-99999999999"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("1,2-"), ElementsAre(1));
}

// A tree like /sys of a machine with two sockets of two NUMA nodes each; a node has two cores of
// two threads, and each core its own cache, but for node 0, whose cores share one. CPU n and n + 8
// are one core. GPUs at nodes 3, 0 and 0 (by PCI address), and a display controller that is none.
class TwoSockets : public testing::Test {
 protected:
  static constexpr int kCores = 8;

  TwoSockets() {
    for (int node = 0; node < 4; ++node) {
      const int core = 2 * node;
      write("devices/system/node/node" + std::to_string(node) + "/cpulist",
            std::to_string(core) + "-" + std::to_string(core + 1) + "," +
                std::to_string(core + kCores) + "-" + std::to_string(core + 1 + kCores));
    }
    write("devices/system/node/online", "0-3");
    for (int cpu = 0; cpu < 2 * kCores; ++cpu) {
      const int core = cpu % kCores;
      const std::string folder = "devices/system/cpu/cpu" + std::to_string(cpu) + "/";
      const std::string siblings = std::to_string(core) + "," + std::to_string(core + kCores);
      write(folder + "topology/physical_package_id", std::to_string(core / 4));
      write(folder + "topology/thread_siblings_list", siblings);
      write(folder + "cache/index0/level", "1");
      write(folder + "cache/index0/shared_cpu_list", siblings);
      write(folder + "cache/index3/level", "3");
      write(folder + "cache/index3/shared_cpu_list", core < 2 ? "0-1,8-9" : siblings);
    }
    gpu("0000:01:00.0", "0x10de", "0x030200", "3");
    gpu("0000:02:00.0", "0x1a03", "0x030000", "0");
    gpu("0000:41:00.0", "0x10de", "0x030200", "0");
    gpu("0000:42:00.0", "0x10de", "0x030000", "0");
    gpu("0000:50:00.0", "0x10de", "0x068000", "1");  // A bridge.
  }

  void gpu(const std::string& address, const std::string& vendor, const std::string& kind,
           const std::string& node) {
    const std::string folder = "bus/pci/devices/" + address + "/";
    write(folder + "vendor", vendor);
    write(folder + "class", kind);
    write(folder + "numa_node", node);
  }

  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((sys_.path() / name).parent_path());
    sys_.write(name, text + "\n");
  }

  Topology topology(const std::set<int>& allowed) const {
    return read_topology(sys_.path(), allowed);
  }
  Topology whole() const {
    std::set<int> all;
    for (int cpu = 0; cpu < 2 * kCores; ++cpu) all.insert(cpu);
    return topology(all);
  }

  static std::vector<Cpus> plan(const Topology& topology, const std::string& mode,
                                const std::vector<int>& nodes) {
    const auto planned = plan_binding(topology, mode, nodes);
    EXPECT_TRUE(planned) << (planned ? "" : planned.error().message);
    std::vector<Cpus> cpus;
    if (!planned) return cpus;
    for (const WorkerCpus& worker : *planned) cpus.push_back(worker.cpus);
    return cpus;
  }
  static std::string why_not(const Topology& topology, const std::string& mode,
                             const std::vector<int>& nodes) {
    const auto planned = plan_binding(topology, mode, nodes);
    return planned ? "" : planned.error().message;
  }

  test::TempDir sys_;
};

TEST_F(TwoSockets, IsRead) {
  const Topology machine = whole();
  ASSERT_EQ(machine.cpus.size(), 16U);
  EXPECT_EQ(machine.cpus[1], (Cpu{1, 0, 0, 1, 0}));
  EXPECT_EQ(machine.cpus[9], (Cpu{9, 0, 0, 1, 0}));
  EXPECT_EQ(machine.cpus[14], (Cpu{14, 3, 1, 6, 6}));
  EXPECT_THAT(machine.gpu_nodes, ElementsAre(3, 0, 0));
}

TEST_F(TwoSockets, NothingToReadIsOneNodeOfSingleCores) {
  const test::TempDir empty;
  const Topology machine = read_topology(empty.path(), {3, 5});
  EXPECT_THAT(machine.cpus, ElementsAre(Cpu{3, 0, 0, 3, 3}, Cpu{5, 0, 0, 5, 5}));
  EXPECT_THAT(machine.gpu_nodes, IsEmpty());
}

TEST_F(TwoSockets, DevicesDecideWhereWorkersRun) {
  config::JobSpec spec;
  spec.nproc = 4;
  EXPECT_THAT(nodes_of_workers(spec, whole()), ElementsAre(3, 0, 0, -1));
  spec.devices = {"2", "0", "GPU-1234", "9"};
  EXPECT_THAT(nodes_of_workers(spec, whole()), ElementsAre(0, 3, -1, -1));
}

TEST_F(TwoSockets, Node) {
  EXPECT_THAT(plan(whole(), "node", {3, 0, 0}),
              ElementsAre(Cpus{6, 7, 14, 15}, Cpus{0, 1, 8, 9}, Cpus{0, 1, 8, 9}));
}

TEST_F(TwoSockets, WorkersWithoutDevicesAreSpread) {
  EXPECT_THAT(
      plan(whole(), "node", {-1, -1, -1, -1}),
      ElementsAre(Cpus{0, 1, 8, 9}, Cpus{2, 3, 10, 11}, Cpus{4, 5, 12, 13}, Cpus{6, 7, 14, 15}));
  EXPECT_THAT(plan(whole(), "node", {-1, -1}), ElementsAre(Cpus{0, 1, 8, 9}, Cpus{4, 5, 12, 13}));
}

TEST_F(TwoSockets, Socket) {
  EXPECT_THAT(plan(whole(), "socket", {3, 0}),
              ElementsAre(Cpus{4, 5, 6, 7, 12, 13, 14, 15}, Cpus{0, 1, 2, 3, 8, 9, 10, 11}));
}

TEST_F(TwoSockets, ExclusiveGivesWholeCores) {
  EXPECT_THAT(plan(whole(), "exclusive", {3, 0, 0}),
              ElementsAre(Cpus{6, 7, 14, 15}, Cpus{0, 8}, Cpus{1, 9}));
  // What is left over goes to the first ones.
  EXPECT_THAT(plan(topology({0, 1, 8, 9}), "exclusive", {-1}), ElementsAre(Cpus{0, 1, 8, 9}));
  const test::TempDir flat;
  EXPECT_THAT(plan(read_topology(flat.path(), {0, 1, 2, 3, 4}), "exclusive", {-1, -1, -1}),
              ElementsAre(Cpus{0, 1}, Cpus{2, 3}, Cpus{4}));
  EXPECT_EQ(why_not(whole(), "exclusive", {0, 0, 0}),
            "NUMA node 0 has only 2 usable cores for 3 workers, which must not share cores; lower "
            "--nproc-per-node, or use --numa-binding node");
}

TEST_F(TwoSockets, CoreComplexesTakeTurnsLargestFirst) {
  EXPECT_THAT(plan(whole(), "core-complex", {0, 1, 1, 1}),
              ElementsAre(Cpus{0, 1, 8, 9}, Cpus{2, 10}, Cpus{3, 11}, Cpus{2, 10}));
  EXPECT_THAT(plan(topology({2, 3, 11}), "core-complex", {1, 1}),
              ElementsAre(Cpus{3, 11}, Cpus{2}));
}

TEST_F(TwoSockets, TheMaskOfThisProcessIsKept) {
  EXPECT_THAT(plan(topology({1, 6, 9}), "node", {3, 0}), ElementsAre(Cpus{6}, Cpus{1, 9}));
  EXPECT_THAT(why_not(topology({1, 9}), "node", {0, 3}),
              HasSubstr("the device of local rank 1 is at NUMA node 3, but this process may use no "
                        "CPU of that node"));
}

TEST_F(TwoSockets, ThreadsAreTheShareOfEachWorker) {
  const auto node = plan_binding(whole(), "node", {3, 0, 0});
  ASSERT_TRUE(node);
  EXPECT_EQ((*node)[0].threads, 4);
  EXPECT_EQ((*node)[1].threads, 2);
  const auto crowded = plan_binding(topology({6}), "node", {3, 3, 3});
  ASSERT_TRUE(crowded);
  EXPECT_EQ((*crowded)[0].threads, 1);
}

TEST(CpuMask, HasABitForEach) {
  EXPECT_THAT(cpu_mask({}), IsEmpty());
  EXPECT_THAT(cpu_mask({0, 2}), ElementsAre(5UL));
  EXPECT_THAT(cpu_mask({1, 64, 130}), ElementsAre(2UL, 1UL, 4UL));
}

}  // namespace
}  // namespace ddp::agent
