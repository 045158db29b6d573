#include <filesystem>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>

#include "common/base/host_name.h"
#include "launcher/machine/accelerators.h"
#include "launcher/machine/machine.h"
#include "tests/support/temp_dir.h"

namespace ddp::machine {
namespace {

TEST(Devices, VisibleDevicesAreCountedAsCudaDoes) {
  EXPECT_EQ(count_visible_devices(""), 0);
  EXPECT_EQ(count_visible_devices("-1"), 0);
  EXPECT_EQ(count_visible_devices("NoDevFiles"), 0);
  EXPECT_EQ(count_visible_devices("0"), 1);
  EXPECT_EQ(count_visible_devices("2, 4,7"), 3);
  EXPECT_EQ(count_visible_devices("0,1,-1,2"), 2);
  EXPECT_EQ(count_visible_devices("GPU-8932f937,MIG-GPU-1/2/3"), 2);
}

TEST(Devices, TheVariableWinsOverDeviceFiles) {
  EXPECT_EQ(cuda_devices([](const char* name) -> const char* {
              return std::string(name) == "CUDA_VISIBLE_DEVICES" ? "3,5,6" : nullptr;
            }),
            3);
}

// The files of a machine with these devices, as drivers make them.
class Accelerators : public testing::Test {
 protected:
  void file(const std::string& folder, const std::string& name, const std::string& text) {
    std::filesystem::create_directories(root_.path() / folder);
    root_.write(folder + "/" + name, text);
  }
  // A node of /sys/class whose device is at this place on the bus.
  void pci_device(const std::string& node, const std::string& place, const std::string& vendor) {
    file("sys/bus/" + place, "vendor", vendor + "\n");
    const auto folder = root_.path() / "sys/class" / node;
    std::filesystem::create_directories(folder);
    std::filesystem::create_directory_symlink(root_.path() / "sys/bus" / place, folder / "device");
  }
  int count(const std::string& name, const std::map<std::string, std::string>& variables = {}) {
    return count_accelerators(
        name,
        [&](const char* variable) {
          const auto found = variables.find(variable);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        root_.path());
  }
  test::TempDir root_;
};

TEST_F(Accelerators, NothingIsThereWithoutDrivers) {
  for (const char* name : {"gpu", "xpu", "hpu", "npu", "auto"}) EXPECT_EQ(count(name), 0) << name;
}

TEST_F(Accelerators, DeviceFilesAreCounted) {
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "davinci0", "davinci7",
                           "davinci12", "davinci_manager", "hl0", "hl1", "hl_controlD0"})
    file("dev", name, "");
  EXPECT_EQ(count("gpu"), 2);
  EXPECT_EQ(count("npu"), 3);
  EXPECT_EQ(count("hpu"), 2);
  EXPECT_EQ(count("auto"), 2);
  EXPECT_EQ(count("auto", {{"CUDA_VISIBLE_DEVICES", ""}, {"HABANA_VISIBLE_MODULES", "1"}}), 1);
}

TEST_F(Accelerators, VariablesOfTheirDriversWin) {
  EXPECT_EQ(count("gpu", {{"CUDA_VISIBLE_DEVICES", "3,5"}}), 2);
  EXPECT_EQ(count("xpu", {{"ZE_AFFINITY_MASK", "0.0,0.1,2"}}), 3);
  EXPECT_EQ(count("hpu", {{"HABANA_VISIBLE_MODULES", "0,1"}}), 2);
  EXPECT_EQ(count("npu", {{"ASCEND_RT_VISIBLE_DEVICES", "4"}}), 1);
}

TEST_F(Accelerators, CardsAreCountedByTheirVendor) {
  pci_device("drm/renderD128", "0000:00:02.0", "0x8086");
  EXPECT_EQ(count("xpu"), 1);
  EXPECT_EQ(count("auto"), 0) << "the GPU inside a CPU";
  pci_device("drm/renderD129", "0000:1a:00.0", "0x8086");
  pci_device("drm/renderD130", "0000:1b:00.0", "0x8086");
  pci_device("drm/renderD131", "0000:1c:00.0", "0x1002");
  pci_device("drm/card1", "0000:1d:00.0", "0x8086");
  EXPECT_EQ(count("xpu"), 2);
  EXPECT_EQ(count("auto"), 2);
  pci_device("accel/accel0", "0000:2a:00.0", "0x1da3");
  pci_device("accel/accel1", "0000:00:0b.0", "0x8086");
  EXPECT_EQ(count("hpu"), 1);
}

TEST(Cores, FollowTheAffinityMask) {
  cpu_set_t before;
  CPU_ZERO(&before);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(LocateHost, LoopbackIsLocalAndOnlyLocal) {
  for (const char* host : {"localhost", "127.0.0.1", "127.3.2.1", "::1"}) {
    const HostPlace place = locate_host(host);
    EXPECT_TRUE(place.local) << host;
    EXPECT_TRUE(place.loopback) << host;
  }
  EXPECT_EQ(locate_host("localhost").address, "127.0.0.1");
  EXPECT_EQ(locate_host("127.3.2.1").address, "127.3.2.1");
}

TEST(LocateHost, OwnNameIsLocalButNotBoundToLoopback) {
  const HostPlace place = locate_host(ddp::host_name());
  EXPECT_TRUE(place.local);
  EXPECT_FALSE(place.loopback);
  EXPECT_FALSE(place.address.empty());
}

TEST(LocateHost, StrangersAreNotLocal) {
  // 192.0.2.0/24 and .invalid are reserved, so nobody has them.
  const HostPlace numeric = locate_host("192.0.2.1");
  EXPECT_FALSE(numeric.local);
  EXPECT_EQ(numeric.address, "192.0.2.1");
  const HostPlace name = locate_host("node0.invalid");
  EXPECT_FALSE(name.local);
  EXPECT_EQ(name.address, "node0.invalid");
}

}  // namespace
}  // namespace ddp::machine
