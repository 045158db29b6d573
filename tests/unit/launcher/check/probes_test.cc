// The probes against real things: limits of this process, folders, a server on loopback.
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/store/socket.h"
#include "launcher/check/folder_probe.h"
#include "launcher/check/local_probe.h"
#include "launcher/check/name_service.h"
#include "launcher/check/nvml_probe.h"
#include "launcher/check/peer_probe.h"
#include "launcher/check/peer_server.h"
#include "tests/support/temp_dir.h"

namespace ddp::check {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(FolderProbe, MeasuresAndLeavesNothing) {
  const test::TempDir folder;
  const FolderFacts facts = probe_folder(folder.path().string());
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.path, folder.path().string());
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_GT(facts.mb_per_s, 0);
  EXPECT_GE(facts.sync_ms, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FolderProbe, AFolderThatIsNotThereIsNamed) {
  const FolderFacts facts = probe_folder("/no/such/folder");
  EXPECT_EQ(facts.error, "No such file or directory");
}

TEST(FolderProbe, ALimitOnTheSizeOfFilesIsAnError) {
  const test::TempDir folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const FolderFacts facts = probe_folder(folder.path().string());
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(facts.error, "cannot be written: File too large");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FolderProbe, WhatHangsIsGivenUp) {
  const test::TempDir folder;
  // Its process has no time at all.
  const FolderFacts facts = probe_folder(folder.path().string(), Duration{0});
  EXPECT_THAT(facts.error, HasSubstr("has not answered for 0 s"));
}

TEST(LocalProbe, SeesThisMachine) {
  const LocalFacts facts =
      probe_node({.host = "n1", .workers = 2, .world_size = 2, .nodes = 1, .check_dir = ""});
  EXPECT_EQ(facts.host, "n1");
  EXPECT_EQ(facts.shm_error, "");
  EXPECT_GT(facts.shm_free, 0);
  EXPECT_GT(facts.memory, 0);
  EXPECT_NE(facts.memory_source, "");
  EXPECT_EQ(facts.memfd_error, "");
  EXPECT_NE(facts.soft_files, 0);
  EXPECT_FALSE(facts.folder);
}

TEST(LocalProbe, ALimitOnTheSizeOfFilesHitsTheSharedMemory) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 30, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const LocalFacts facts =
      probe_node({.host = "n1", .workers = 2, .world_size = 2, .nodes = 1, .check_dir = ""});
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(facts.memfd_error, HasSubstr("File too large"));
}

TEST(NvmlProbe, AsksTheDriversLibrary) {
  // The dynamic linker knows it from here on under the driver's name.
  ASSERT_NE(::dlopen(NVML_STANDIN, RTLD_NOW), nullptr) << ::dlerror();
  const test::TempDir root;
  std::filesystem::create_directory(root.path() / "dev");
  LocalFacts none;
  probe_gpus(none, root.path().string());
  EXPECT_EQ(none.gpu_files, 0);
  EXPECT_THAT(none.gpus, IsEmpty());
  for (const char* file : {"dev/nvidia0", "dev/nvidia1", "dev/nvidia2", "dev/nvidiactl"})
    root.write(file, "");
  LocalFacts facts;
  probe_gpus(facts, root.path().string());
  EXPECT_EQ(facts.gpu_files, 3);
  EXPECT_EQ(facts.nvml_error, "");
  ASSERT_EQ(facts.gpus.size(), 2u);
  EXPECT_EQ(facts.gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(facts.gpus[0].error, "");
  EXPECT_EQ(facts.gpus[0].uncorrected_errors, 3);
  EXPECT_TRUE(facts.gpus[0].remapping_pending);
  EXPECT_FALSE(facts.gpus[0].remapping_failed);
  EXPECT_EQ(facts.gpus[0].used_bytes, 555'024'384);
  EXPECT_EQ(facts.gpus[0].total_bytes, 85'520'809'984);
  EXPECT_EQ(facts.gpus[1].error, "GPU is lost");
}

TEST(Names, GoForwardsAndBack) {
  const Lookup found = look_up("localhost");
  EXPECT_EQ(found.error, "");
  EXPECT_THAT(found.addresses, testing::Contains(testing::AnyOf("127.0.0.1", "::1")));
  EXPECT_NE(name_of_address("127.0.0.1"), "");
  EXPECT_EQ(look_up("no-such-host.invalid").addresses.size(), 0u);
  EXPECT_THAT(look_up("no-such-host.invalid").error, HasSubstr("no-such-host.invalid has no"));
}

PeerPlace place_of(const PeerServer& server) {
  return {.node = 1,
          .host = "localhost",
          .address = "127.0.0.1",
          .port = server.port(),
          .token = server.token()};
}

TEST(Peers, MeetAndMeasure) {
  const auto server = PeerServer::start();
  ASSERT_TRUE(server) << server.error().message;
  auto met = meet_peers({place_of(**server), place_of(**server)});
  ASSERT_EQ(met.size(), 2u);
  for (PeerFacts& peer : met) {
    EXPECT_EQ(peer.node, 1);
    EXPECT_EQ(peer.error, "");
    EXPECT_EQ(peer.name_error, "");
    ASSERT_TRUE(peer.has_clock);
    // One clock: any difference is within what is said to be uncertain.
    EXPECT_LE(std::abs(peer.clock_ms), peer.clock_error_ms + 0.01);
    EXPECT_FALSE(peer.is_neighbour);
    measure_link(place_of(**server), peer);
    EXPECT_TRUE(peer.is_neighbour);
    EXPECT_GT(peer.latency_ms, 0);
    EXPECT_GT(peer.mb_per_s, 1);
  }
}

TEST(Peers, OneThatDoesNotListenIsNamed) {
  PeerPlace place;
  {
    const auto server = PeerServer::start();
    ASSERT_TRUE(server);
    place = place_of(**server);
  }
  const auto met = meet_peers({place});
  EXPECT_THAT(met.at(0).error, HasSubstr("127.0.0.1:" + std::to_string(place.port) + ": "));
  EXPECT_FALSE(met.at(0).has_clock);
}

TEST(Peers, NobodyIsServedWithoutTheToken) {
  const auto server = PeerServer::start();
  ASSERT_TRUE(server);
  PeerPlace stranger = place_of(**server);
  stranger.token = std::string(kTokenBytes, '0');
  const auto met = meet_peers({stranger});
  EXPECT_NE(met.at(0).error, "");
  EXPECT_FALSE(met.at(0).has_clock);
}

TEST(Peers, PlacesGoThroughTheStore) {
  const PeerPlace place{.node = 2, .host = "n\xFF", .address = "::1", .port = 7, .token = "t"};
  const auto back = decode_peer_place(encode(place));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->node, 2);
  EXPECT_EQ(back->address, "::1");
  EXPECT_EQ(back->port, 7);
  EXPECT_EQ(back->token, "t");
  EXPECT_FALSE(decode_peer_place("x"));
}

TEST(Peers, NumbersAreSentAsBytes) {
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 52})
    EXPECT_EQ(from_bytes(to_bytes(number)), number);
  EXPECT_EQ(to_bytes(1), std::string("\1\0\0\0\0\0\0\0", 8));
}

}  // namespace
}  // namespace ddp::check
