#include <unistd.h>

#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/verify_plan.h"

namespace ddp::checkpoint {
namespace {

using test::MemoryFileSystem;
using test::publish_sample;
using test::salt_of;
using test::SampleTensor;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ReaderTest : public ::testing::Test {
 protected:
  ReaderTest() {
    EXPECT_TRUE(directory_.prepare());
    entry_ = *publish_sample(files_, directory_, 1, 11);
    manifest_ = *directory_.inspect(entry_);
  }
  const TensorRecord& record(std::string_view name, Rank rank) const {
    for (const TensorRecord& tensor : manifest_.tensors) {
      if (tensor.name == name && tensor.rank == rank) return tensor;
    }
    throw std::logic_error("no such tensor");
  }
  // What has been read and checked since the last call.
  std::uint64_t read_bytes() { return std::exchange(read_, 0); }
  Reader reader() {
    Reader made(files_, entry_.path, manifest_);
    made.on_progress([this](std::uint64_t bytes) { read_ += bytes; });
    return made;
  }

  MemoryFileSystem files_;
  Directory directory_{files_, "ckpt"};
  Entry entry_;
  Manifest manifest_;
  std::uint64_t read_ = 0;
};

TEST_F(ReaderTest, GivesATensorsBytesAndReadsNothingElse) {
  // The other shard could not be read.
  files_.fail_opening("rank-00000");
  Reader reader = this->reader();
  auto tensor = reader.tensor(record("a", kReplicated));
  ASSERT_TRUE(tensor) << tensor.error().message;
  const SampleTensor expected("a", TensorType::kF32, {3, 5}, 11);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size()),
            expected.bytes);
  EXPECT_EQ(read_bytes(), 60u);
  ASSERT_TRUE(reader.tensor(record("a", kReplicated)));
  EXPECT_EQ(read_bytes(), 0u);  // Once is enough.
  EXPECT_FALSE(reader.tensor(record("a", 0)));
}

TEST_F(ReaderTest, AVerifiedFileIsNotReadAgain) {
  Reader reader = this->reader();
  for (const FileRecord& file : manifest_.files) {
    ASSERT_TRUE(reader.verify(file));
    EXPECT_EQ(read_bytes(), file.bytes);
    ASSERT_TRUE(reader.verify(file));
  }
  ASSERT_TRUE(reader.tensor(record("b", 0)));
  EXPECT_EQ(read_bytes(), 0u);
}

TEST_F(ReaderTest, DamageInOneTensorLeavesTheOthersOfItsFile) {
  std::string& shard = *files_.contents(entry_.path + "/shard-00000.safetensors");
  shard.back() = static_cast<char>(shard.back() ^ 0x10);  // Of "a": larger elements lie first.
  Reader reader = this->reader();
  EXPECT_TRUE(reader.tensor(record("b", kReplicated)));
  auto damaged = reader.tensor(record("a", kReplicated));
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Errc::kCorrupt);
  EXPECT_THAT(damaged.error().message,
              HasSubstr("the checksum of tensor \"a\" in ckpt/step-0000000001/shard-00000"));
}

TEST_F(ReaderTest, ASectorThatTheDiskCannotReadIsAnErrorOfThatPartOnly) {
  files_.fail_fetching("shard-00000", manifest_.find_file("shard-00000.safetensors")->bytes - 1);
  Reader reader = this->reader();
  EXPECT_TRUE(reader.tensor(record("b", kReplicated)));
  auto damaged = reader.tensor(record("a", kReplicated));
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Errc::kIo);
  // A newer checkpoint with such a sector is passed over.
  ASSERT_TRUE(publish_sample(files_, directory_, 2, 22));
  files_.fail_fetching("step-0000000002/rank-00000", 3);
  std::vector<std::string> skipped;
  EXPECT_EQ(salt_of(*test::open_newest_valid(directory_, &skipped)), 11);
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("Input/output error")));
}

// Flips one bit of every byte of every file of the newest of three, in turn. Also cuts each file
// off there.
TEST_F(ReaderTest, EveryFlippedByteIsFoundAndTheOlderOneUsed) {
  ASSERT_TRUE(publish_sample(files_, directory_, 2, 22));
  const Entry newest = *publish_sample(files_, directory_, 3, 33);
  std::size_t flips = 0;
  for (const std::string& name : files_.names(newest.path)) {
    std::string& bytes = *files_.contents(newest.path + "/" + name);
    const std::string whole = bytes;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (const bool cuts : {false, true}) {
        if (cuts) {
          bytes.resize(i);
        } else {
          bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
        }
        std::vector<std::string> skipped;
        Directory again(files_, "ckpt");
        ASSERT_EQ(salt_of(*test::open_newest_valid(again, &skipped)), 22)
            << name << (cuts ? " cut at " : " flipped at ") << i;
        ASSERT_THAT(skipped, SizeIs(1));
        ASSERT_THAT(skipped[0], HasSubstr(newest.path + " passed over: "));
        bytes = whole;
        ++flips;
      }
    }
  }
  EXPECT_GT(flips, 2000u);
  EXPECT_EQ(salt_of(*test::open_newest_valid(directory_)), 33);
}

// By the tensors' checksums alone, too: there is no byte that only the file's own would cover.
TEST_F(ReaderTest, TensorsAndTheHeaderCoverEveryByteOfAFile) {
  for (const FileRecord& file : manifest_.files) {
    std::string& bytes = *files_.contents(entry_.path + "/" + file.name);
    const std::string whole = bytes;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
      EXPECT_FALSE(reader().verify_tensors(file, 1)) << file.name << " flipped at " << i;
      bytes = whole;
    }
    Reader reader = this->reader();
    read_bytes();
    ASSERT_TRUE(reader.verify_tensors(file, 1));
    EXPECT_EQ(read_bytes(), file.bytes);
    ASSERT_TRUE(reader.verify(file));
    EXPECT_EQ(read_bytes(), 0u);
  }
}

// A header that somebody else has written, such as one with metadata, needs the file's checksum.
TEST_F(ReaderTest, AForeignHeaderIsCheckedByTheFilesChecksum) {
  const SampleTensor tensor("a", TensorType::kF32, {3, 5}, 1);
  const TensorView view{tensor.name, tensor.type, tensor.shape,
                        std::as_bytes(std::span(tensor.bytes))};
  auto written = write_safetensors(files_, "ckpt/foreign.safetensors", {view}, {{"made", "by"}});
  ASSERT_TRUE(written);
  Manifest manifest;
  manifest.files = {{"foreign.safetensors", written->bytes, written->checksum}};
  manifest.tensors = {{"a", kReplicated, "foreign.safetensors", tensor.type, tensor.shape,
                       written->tensors[0].checksum}};
  EXPECT_TRUE(Reader(files_, "ckpt", manifest).verify_tensors(manifest.files[0], 1));
  std::string& bytes = *files_.contents("ckpt/foreign.safetensors");
  bytes[bytes.find("by")] = 'B';
  auto refused = Reader(files_, "ckpt", manifest).verify_tensors(manifest.files[0], 1);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("the checksum of ckpt/foreign.safetensors"));
}

TEST(ReaderThreads, ReadALargeFileTogether) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const TempDir folder;
  FileSystem& files = posix_file_system();
  const std::string data(kBytes, 'x');
  std::vector<TensorView> views;
  for (const char* name : {"a", "b", "c"}) {
    views.push_back({name,
                     TensorType::kU8,
                     {static_cast<std::int64_t>(kBytes)},
                     std::as_bytes(std::span(data))});
  }
  auto written = write_safetensors(files, folder.path() / "f.safetensors", views);
  ASSERT_TRUE(written);
  Manifest manifest;
  manifest.files = {{"f.safetensors", written->bytes, written->checksum}};
  for (const auto& tensor : written->tensors) {
    manifest.tensors.push_back({tensor.name,
                                kReplicated,
                                "f.safetensors",
                                TensorType::kU8,
                                {static_cast<std::int64_t>(kBytes)},
                                tensor.checksum});
  }
  const auto verify = [&](std::uint64_t& told) {
    Reader reader(files, folder.path(), manifest);
    const auto caller = std::this_thread::get_id();
    reader.on_progress([&told, caller](std::uint64_t bytes) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      told += bytes;
    });
    return reader.verify_tensors(manifest.files[0], 3);
  };
  std::uint64_t told = 0;
  EXPECT_TRUE(verify(told));
  EXPECT_EQ(told, written->bytes);
  for (const std::size_t tensor : {0U, 1U, 2U}) {
    const Manifest good = manifest;
    manifest.tensors[tensor].checksum[2] = 'x';
    auto damaged = verify(told);
    ASSERT_FALSE(damaged);
    EXPECT_THAT(damaged.error().message, HasSubstr(manifest.tensors[tensor].name));
    manifest = good;
  }
}

TEST_F(ReaderTest, SeveralBadOnesHaveALineEach) {
  const Entry second = *publish_sample(files_, directory_, 2, 22);
  const Entry third = *publish_sample(files_, directory_, 3, 33);
  files_.contents(third.path + "/manifest.json")->resize(100);
  ASSERT_TRUE(files_.remove_file(second.path + "/rank-00000.safetensors"));
  std::vector<std::string> skipped;
  EXPECT_EQ(salt_of(*test::open_newest_valid(directory_, &skipped)), 11);
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("step-0000000003 passed over: "),
                                   HasSubstr("rank-00000.safetensors does not exist")));
}

TEST(MappedFiles, OfTheDiskOutliveTheirNamesAndAreNoTrapWhenCut) {
  const TempDir scratch;
  const std::string path = scratch.write("f", std::string(100'000, 'x'));
  FileSystem& files = posix_file_system();
  auto mapped = files.map_file(path);
  ASSERT_TRUE(mapped) << mapped.error().message;
  ASSERT_EQ((*mapped)->bytes().size(), 100'000u);
  EXPECT_TRUE((*mapped)->fetch(0, 100'000));
  EXPECT_TRUE((*mapped)->fetch(99'999, 1));
  EXPECT_TRUE((*mapped)->fetch(100'000, 0));
  ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
  EXPECT_TRUE((*mapped)->fetch(4999, 1));
  auto cut = (*mapped)->fetch(0, 100'000);  // Touching it would be a SIGBUS.
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, Errc::kIo);
  EXPECT_THAT(cut.error().message, HasSubstr("cannot read " + path));
  ASSERT_TRUE(files.remove_file(path));
  EXPECT_EQ((*mapped)->bytes()[4999], std::byte{'x'});

  auto empty = files.map_file(scratch.write("empty", ""));
  ASSERT_TRUE(empty);
  EXPECT_TRUE((*empty)->bytes().empty());
  EXPECT_TRUE((*empty)->fetch(0, 0));
  EXPECT_EQ(files.map_file(path).error().code, Errc::kNotFound);
  EXPECT_EQ(files.map_file(scratch.path().string()).error().code, Errc::kCorrupt);
}

Manifest manifest_of(int world_size, const std::vector<std::pair<std::string, Rank>>& tensors) {
  Manifest manifest;
  manifest.world_size = world_size;
  for (const auto& [file, rank] : tensors) {
    if (manifest.find_file(file) == nullptr) {
      manifest.files.push_back({file, 1000 + 100 * manifest.files.size(), ""});
    }
    manifest.tensors.push_back(
        {"t" + std::to_string(manifest.tensors.size()), rank, file, TensorType::kU8, {}, ""});
  }
  return manifest;
}

TEST(VerifyPlan, EveryFileIsOneRanksWhateverTheWorld) {
  Manifest manifest = manifest_of(3, {{"shard-0", kReplicated},
                                      {"shard-1", kReplicated},
                                      {"rank-0", 0},
                                      {"rank-1", 1},
                                      {"rank-2", 2},
                                      {"mixed", 1},
                                      {"mixed", kReplicated}});
  manifest.files.push_back({"without-tensors", 8, ""});
  for (int world = 1; world <= 8; ++world) {
    std::multiset<std::string> verified;
    for (Rank rank = 0; rank < world; ++rank) {
      for (const FileRecord* file : files_to_verify(manifest, rank, world)) {
        verified.insert(file->name);
      }
    }
    EXPECT_THAT(verified, ::testing::UnorderedElementsAre("shard-0", "shard-1", "rank-0", "rank-1",
                                                          "rank-2", "mixed", "without-tensors"))
        << world;
  }
}

TEST(VerifyPlan, RanksHaveTheirOwnFilesAndEqualPartsOfTheRest) {
  const Manifest manifest = manifest_of(
      2, {{"shard-0", kReplicated}, {"shard-1", kReplicated}, {"rank-0", 0}, {"rank-1", 1}});
  for (const Rank rank : {0, 1}) {
    std::vector<std::string> names;
    for (const FileRecord* file : files_to_verify(manifest, rank, 2)) names.push_back(file->name);
    // The larger shard is dealt first.
    EXPECT_THAT(names,
                ElementsAre(rank == 0 ? "shard-1" : "shard-0", rank == 0 ? "rank-0" : "rank-1"));
  }
}

}  // namespace
}  // namespace ddp::checkpoint
