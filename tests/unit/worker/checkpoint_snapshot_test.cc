#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/snapshot_samples.h"
#include "worker/checkpoint/share_plan.h"
#include "worker/checkpoint/snapshot.h"

// Snapshots, and which rank writes what.
namespace ddp::checkpoint {
namespace {

using test::SampleSave;
using test::SampleShare;
using test::share_of;
using test::snapshot_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SampleSave sample() { return {.directory = "a/b", .save_id = "abc_1-2", .world_size = 3}; }

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(Snapshot, ComesBackAsItWasLaidOut) {
  SampleShare share = share_of(sample(), 2);
  share.plan.rank_state = {{"nan", std::numeric_limits<double>::quiet_NaN()}, {"third", 1.0 / 3}};
  share.plan.retention = {4, 50};
  share.plan.bytes_per_second = 12345;
  share.plan.timeout = std::chrono::seconds(42);
  const SnapshotMemory memory = snapshot_of(share);
  auto back = open_snapshot(memory.bytes());
  ASSERT_TRUE(back) << back.error().message;
  const SnapshotPlan& plan = back->plan;
  EXPECT_EQ(plan.directory, "a/b");
  EXPECT_EQ(plan.save_id, "abc_1-2");
  EXPECT_EQ(plan.job_id, "sample");
  EXPECT_EQ(plan.step, 1);
  EXPECT_EQ(plan.epoch, 3);
  EXPECT_EQ(plan.round, 2);
  EXPECT_EQ(plan.world_size, 3);
  EXPECT_EQ(plan.rank, 2);
  EXPECT_FALSE(plan.publishes());
  EXPECT_EQ(plan.retention.keep, 4);
  EXPECT_EQ(plan.retention.keep_every, 50);
  EXPECT_EQ(plan.bytes_per_second, 12345u);
  EXPECT_EQ(plan.timeout, std::chrono::seconds(42));
  EXPECT_TRUE(std::isnan(plan.rank_state.at("nan").get<double>()));
  EXPECT_EQ(plan.rank_state.at("third").get<double>(), 1.0 / 3);
  ASSERT_EQ(plan.files.size(), 2u);
  EXPECT_EQ(plan.files[0].name, "shard-00002.safetensors");
  EXPECT_EQ(plan.files[0].owner, kReplicated);
  EXPECT_EQ(plan.files[1].name, "rank-00002.safetensors");
  EXPECT_EQ(plan.files[1].owner, 2);
  std::map<std::string, std::string> contents;
  for (const auto& tensor : share.tensors) contents[tensor.name] = tensor.bytes;
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(back->bytes[i].size(), plan.files[i].tensors.size());
    for (std::size_t j = 0; j < back->bytes[i].size(); ++j) {
      const auto bytes = back->bytes[i][j];
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                contents.at(plan.files[i].tensors[j].name));
    }
  }
}

TEST(Snapshot, TensorsOfAFileLieOneBehindTheOtherAndSharedOnesOnce) {
  SampleShare share = share_of(sample(), 0);
  SnapshotFile& file = share.plan.files[0];
  const auto tensor = [](std::string name, TensorType type, std::int64_t count,
                         std::uint64_t storage) {
    SnapshotTensor result;
    result.name = std::move(name);
    result.type = type;
    result.shape = {count};
    result.storage = storage;
    return result;
  };
  file.tensors = {tensor("byte", TensorType::kU8, 3, 0),  tensor("tied", TensorType::kF32, 7, 9),
                  tensor("a", TensorType::kF32, 7, 9),    tensor("long", TensorType::kI64, 2, 0),
                  tensor("half", TensorType::kF16, 5, 0), tensor("none", TensorType::kF32, 0, 0)};
  auto layout = lay_out(share.plan);
  ASSERT_TRUE(layout) << layout.error().message;
  std::map<std::string, std::uint64_t> offsets;
  for (const SnapshotTensor& item : layout->plan.files[0].tensors) offsets[item.name] = item.offset;
  const std::uint64_t begin = kSnapshotHeaderBytes;
  EXPECT_EQ(offsets, (std::map<std::string, std::uint64_t>{{"long", begin},
                                                           {"a", begin + 16},
                                                           {"none", begin + 44},
                                                           {"tied", begin + 16},
                                                           {"half", begin + 44},
                                                           {"byte", begin + 54}}));
  // The next file begins aligned.
  EXPECT_EQ(layout->plan.files[1].tensors[0].offset, begin + kSnapshotAlignment);
}

TEST(Snapshot, IsRefusedBeforeItIsMadeWhereItCouldNotBeWritten) {
  const auto complaint = [](auto&& change) {
    SampleShare share = share_of(sample(), 1);
    change(share.plan);
    auto layout = lay_out(share.plan);
    if (layout) return std::string("accepted");
    EXPECT_EQ(layout.error().code, Errc::kInvalidArgument);
    return layout.error().message;
  };
  EXPECT_EQ(complaint([](SnapshotPlan&) {}), "accepted");
  EXPECT_THAT(complaint([](auto& plan) { plan.directory = ""; }), HasSubstr("directory"));
  EXPECT_THAT(complaint([](auto& plan) { plan.save_id = "../x"; }), HasSubstr("../x"));
  EXPECT_THAT(complaint([](auto& plan) { plan.save_id = std::string(65, 'x'); }),
              HasSubstr("save id"));
  EXPECT_THAT(complaint([](auto& plan) { plan.step = -1; }), HasSubstr("step -1"));
  EXPECT_THAT(complaint([](auto& plan) { plan.rank = 3; }), HasSubstr("rank 3"));
  EXPECT_THAT(complaint([](auto& plan) { plan.retention.keep = -1; }), HasSubstr("keep -1"));
  for (const char* name : {"manifest.json", "a/b.safetensors", "part-00000.json", ".safetensors"}) {
    EXPECT_THAT(complaint([&](auto& plan) { plan.files[0].name = name; }), HasSubstr(name));
  }
  EXPECT_THAT(complaint([](auto& plan) { plan.files[1].name = plan.files[0].name; }),
              HasSubstr("twice"));
  EXPECT_THAT(complaint([](auto& plan) { plan.files[1].owner = 0; }), HasSubstr("rank 0"));
  EXPECT_THAT(
      complaint([](auto& plan) { plan.files[0].tensors.push_back(plan.files[0].tensors[0]); }),
      HasSubstr("twice"));
  EXPECT_THAT(complaint([](auto& plan) { plan.files[0].tensors[0].shape = {-1}; }),
              HasSubstr("shape"));
  EXPECT_THAT(complaint([](auto& plan) { plan.files[0].tensors[0].name = "\xff"; }),
              HasSubstr("UTF-8"));
  EXPECT_THAT(complaint([](auto& plan) { plan.rank_state["x"] = "\xff"; }), HasSubstr("UTF-8"));
}

TEST(Snapshot, IsNotReadBeforeItIsSealedOrAfterItIsUnsealed) {
  const SampleShare share = share_of(sample(), 0);
  auto layout = lay_out(share.plan);
  std::vector<std::byte> memory(layout->bytes);
  EXPECT_EQ(open_snapshot(memory).error().code, Errc::kCorrupt);
  seal_snapshot(memory, *layout);
  EXPECT_TRUE(open_snapshot(memory));
  unseal_snapshot(memory);
  auto unsealed = open_snapshot(memory);
  ASSERT_FALSE(unsealed);
  EXPECT_THAT(unsealed.error().message, HasSubstr("not sealed"));
  // Reused, larger memory.
  memory.resize(layout->bytes + 1000);
  seal_snapshot(memory, *layout);
  EXPECT_TRUE(open_snapshot(memory));
}

TEST(Snapshot, DamageOfHeaderOrPlanIsFoundByteByByte) {
  const SnapshotMemory memory = snapshot_of(share_of(sample(), 2));
  const auto good = copy_of(memory.bytes());
  const auto layout = lay_out(share_of(sample(), 2).plan);
  for (std::size_t cut = 0; cut < good.size(); cut += 61) {
    EXPECT_FALSE(open_snapshot(std::span(good).first(cut))) << cut;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    // What lies between the header's fields and the plan is padding and tensors.
    if (at >= 96 && at < layout->data_end) continue;
    auto bad = good;
    bad[at] ^= std::byte{1 << 3};
    EXPECT_FALSE(open_snapshot(bad)) << at;
  }
}

// A snapshot with another plan whose checksums hold: nothing in it is believed.
TEST(Snapshot, AForgedPlanIsRefused) {
  const SampleShare share = share_of(sample(), 2);
  const auto opened = [&](const std::string& from, const std::string& to) {
    auto layout = lay_out(share.plan);
    const std::size_t at = layout->plan_text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    layout->plan_text.replace(at, from.size(), to);
    layout->bytes = layout->data_end + layout->plan_text.size();
    std::vector<std::byte> memory(layout->bytes);
    seal_snapshot(memory, *layout);
    auto snapshot = open_snapshot(memory);
    return snapshot ? "accepted" : snapshot.error().message;
  };
  EXPECT_EQ(opened("\"step\":1", "\"step\":2"), "accepted");
  EXPECT_THAT(opened("\"offset\":4096", "\"offset\":0"), HasSubstr("outside"));
  EXPECT_THAT(opened("\"offset\":4096", "\"offset\":40960"), HasSubstr("outside"));
  EXPECT_THAT(opened("\"offset\":4096", "\"offset\":-1"), HasSubstr("not an integer from 0"));
  EXPECT_THAT(opened("\"shape\":[16]", "\"shape\":[16000]"), HasSubstr("outside"));
  EXPECT_THAT(opened("\"shape\":[16]", "\"shape\":[4611686018427387904,2]"), HasSubstr("shape"));
  EXPECT_THAT(opened("\"F32\"", "\"F33\""), HasSubstr("type"));
  EXPECT_THAT(opened("shard-00002.safetensors", "../../etc/x.safetensors"), HasSubstr("etc"));
  EXPECT_THAT(opened("\"rank\":2", "\"rank\":7"), HasSubstr("rank 7"));
  EXPECT_THAT(opened("\"step\":1", "\"step\":\"1\""), HasSubstr("the wrong type"));
  EXPECT_THAT(opened("\"step\":1", "\"stop\":1"), HasSubstr("missing"));
}

TEST(Snapshot, MemoryOfAnotherProcessIsTakenOnlyIfItCannotShrink) {
  const SnapshotMemory memory = snapshot_of(share_of(sample(), 2));
  EXPECT_NE(::ftruncate(memory.fd(), 4096), 0);
  auto mapped = SnapshotMemory::map(memory.fd());
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(open_snapshot(mapped->bytes()));
  const UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), 8192), 0);
  for (const int fd : {loose.get(), 0, -1, 9999}) {
    auto refused = SnapshotMemory::map(fd);
    ASSERT_FALSE(refused) << fd;
    EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  }
}

TEST(SharePlan, DealsTheLargestFirstToTheEmptiest) {
  const std::vector<ShareItem> items = {
      {"a", 10, 0, false}, {"b", 40, 0, false}, {"c", 30, 0, false},
      {"d", 20, 0, false}, {"e", 20, 0, false}, {"f", 0, 0, false},
  };
  // After b, c and d the loads are 40, 30, 20: e goes to 2, then a to 1, and f to the first.
  EXPECT_THAT(deal_shares(items, 3), ElementsAre(1, 0, 1, 2, 2, 0));
  EXPECT_THAT(deal_shares(items, 1), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(deal_shares({}, 4), ElementsAre());
}

TEST(SharePlan, EqualOnesGoByNameWhateverTheirOrder) {
  const std::vector<ShareItem> items = {{"c", 5, 0, false}, {"a", 5, 0, false}, {"b", 5, 0, false}};
  EXPECT_THAT(deal_shares(items, 3), ElementsAre(2, 0, 1));
}

TEST(SharePlan, SharedMemoryStaysTogetherAndPinnedCountsForRankZero) {
  const std::vector<ShareItem> items = {
      {"w", 6, 7, false}, {"x", 8, 0, false}, {"tied", 6, 7, false}, {"buffer", 9, 0, true}};
  // Pinned: 0 has 9. The tied pair of 12 goes to 1, x to 0.
  EXPECT_THAT(deal_shares(items, 2), ElementsAre(1, 0, 1, 0));
  // One of the pair pinned: both go to rank 0.
  const std::vector<ShareItem> pinned = {
      {"w", 6, 7, true}, {"tied", 6, 7, false}, {"x", 8, 0, false}};
  EXPECT_THAT(deal_shares(pinned, 2), ElementsAre(0, 0, 1));
}

TEST(SharePlan, NoRankHasMoreThanItsPartAndTheLargestItem) {
  std::mt19937_64 dice(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<ShareItem> items(dice() % 200);
    std::uint64_t total = 0;
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i] = {std::to_string(i), dice() % 1000, 0, false};
      total += items[i].bytes;
      largest = std::max(largest, items[i].bytes);
    }
    const int world = 1 + static_cast<int>(dice() % 9);
    const std::vector<Rank> owners = deal_shares(items, world);
    std::vector<std::uint64_t> load(static_cast<std::size_t>(world), 0);
    for (std::size_t i = 0; i < items.size(); ++i) {
      load.at(static_cast<std::size_t>(owners[i])) += items[i].bytes;
    }
    for (const std::uint64_t bytes : load) {
      EXPECT_LE(bytes, total / static_cast<std::uint64_t>(world) + largest);
    }
  }
}

}  // namespace
}  // namespace ddp::checkpoint
