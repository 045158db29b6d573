#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/nccl_processes.h"
#include "tests/support/nccl_world.h"

// Tests whose ranks are threads over the stand-in, or processes over the real libraries. Processes
// can share a device, so one is enough.
namespace ddp::test {

// The parameter: "standin", or "device", which is skipped without a device.
class NcclRanksTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (on_standin()) {
      control().reset();
      library_ = standin_library();
      return;
    }
    auto library = NcclLibrary::load({});
    if (!library) GTEST_SKIP() << library.error().message;
    const auto devices = device_count_in_child(**library);
    if (!devices) GTEST_SKIP() << devices.error().message;
    if (*devices == 0) GTEST_SKIP() << "CUDA sees no device";
    library_ = std::move(*library);
    devices_ = *devices;
  }
  void TearDown() override {
    if (on_standin()) expect_clean_standin();
  }

  bool on_standin() const { return std::string(GetParam()) == "standin"; }
  // Runs body on every rank of one world. What ranks share must be Shared.
  void world(int size, const std::function<void(NcclRank&)>& body) {
    if (!on_standin()) {
      for (const int status : run_processes(library_, devices_, size, body)) EXPECT_EQ(status, 0);
      return;
    }
    const auto store = std::make_shared<HashStore>();
    on_ranks(size, [&](Rank rank) {
      NcclRank own(library_, rank, size, rank, [&] { return store; });
      body(own);
    });
  }
  // Runs body with a group on every rank of worlds of all sizes.
  void everywhere(const std::function<void(NcclGroup&)>& body) {
    for (int size = 1; size <= 4; ++size) {
      world(size, [&](NcclRank& rank) { body(*rank.group()); });
    }
  }
  DeviceArray array(NcclGroup& group, DType type, const std::vector<double>& values) {
    return {group, *library_, type, values};
  }

  std::shared_ptr<const NcclLibrary> library_;
  int devices_ = 0;
};

inline std::string library_name(const ::testing::TestParamInfo<const char*>& each) {
  return each.param;
}

}  // namespace ddp::test
