#include <string>

#include <gtest/gtest.h>
#include <sched.h>

#include "launcher/ddp_run/machine.h"

namespace ddp::run {
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
  const HostPlace place = locate_host(host_name());
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
}  // namespace ddp::run
