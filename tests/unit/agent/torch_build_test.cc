#include "agent/process/torch_build.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

// Packages in the shape of PyTorch's: its version, and a library to look into.
class TorchBuild : public testing::Test {
 protected:
  std::string package(const std::string& version, const std::string& library) {
    folder_.write("version.py", "from typing import Optional\n__version__ = '" + version + "'\n");
    const auto lib = folder_.path() / "lib";
    std::filesystem::create_directories(lib);
    std::filesystem::remove(lib / "libtorch_cpu.so");
    if (!library.empty()) std::filesystem::create_symlink(library, lib / "libtorch_cpu.so");
    return folder_.path().string();
  }

  test::TempDir folder_;
};

TEST_F(TorchBuild, WithoutEpollAndLibuvThereIsNoLibuv) {
  EXPECT_TRUE(lacks_libuv(package("2.6.0+debian", LIBRARY_WITHOUT_EPOLL)));
  EXPECT_TRUE(lacks_libuv(package("2.14.1", LIBRARY_WITHOUT_EPOLL)));
  EXPECT_TRUE(lacks_libuv(package("3.0.0", LIBRARY_WITHOUT_EPOLL)));
}

TEST_F(TorchBuild, WhatMayHaveItInsideIsLeftAlone) {
  EXPECT_FALSE(lacks_libuv(package("2.6.0", LIBRARY_WITH_EPOLL)));
}

TEST_F(TorchBuild, OlderReleasesDoNotAskForIt) {
  EXPECT_FALSE(lacks_libuv(package("1.13.0a0", LIBRARY_WITHOUT_EPOLL)));
  EXPECT_FALSE(lacks_libuv(package("2.3.1", LIBRARY_WITHOUT_EPOLL)));
}

TEST_F(TorchBuild, WhatCannotBeReadIsLeftAlone) {
  EXPECT_FALSE(lacks_libuv(package("2.6.0", "")));
  EXPECT_FALSE(lacks_libuv(package("2.6.0", "/dev/null")));
  EXPECT_FALSE(lacks_libuv(package("2.6.0", "/etc/passwd")));
  EXPECT_FALSE(lacks_libuv(package("unknown", LIBRARY_WITHOUT_EPOLL)));
  EXPECT_FALSE(lacks_libuv("/nowhere"));
}

}  // namespace
}  // namespace ddp::agent
