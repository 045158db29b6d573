#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/safetensors.h"

// Large files bypass the page cache if possible, and have the right contents either way.
namespace ddp::checkpoint {
namespace {

using test::SampleTensor;
using test::TempDir;

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// Memory that begins on a page, filled with what no shift leaves as it is.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    data_ = static_cast<std::byte*>(memory);
    std::mt19937 random(7);
    std::generate_n(data_, bytes, [&random] { return static_cast<std::byte>(random()); });
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<const std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

std::vector<std::byte> contents_of(const std::string& path) {
  auto file = posix_file_system().open_file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::byte> bytes((*file)->size());
  EXPECT_TRUE((*file)->read_at(0, bytes));
  return bytes;
}

// How many pages of a file the system holds in memory.
std::size_t cached_pages(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto size = static_cast<std::size_t>(::lseek(fd.get(), 0, SEEK_END));
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  EXPECT_NE(memory, MAP_FAILED);
  std::vector<unsigned char> present((size + kDataAlignment - 1) / kDataAlignment);
  EXPECT_EQ(::mincore(memory, size, present.data()), 0);
  ::munmap(memory, size);
  return static_cast<std::size_t>(
      std::count_if(present.begin(), present.end(), [](unsigned char page) { return page & 1; }));
}

// A folder in memory is a cache itself.
bool has_disk(const std::string& folder) {
  struct statfs info {};
  EXPECT_EQ(::statfs(folder.c_str(), &info), 0);
  const UniqueFd fd(
      ::open((folder + "/try").c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  return fd && info.f_type != TMPFS_MAGIC;
}

TEST(DirectWriting, ALargeShardLeavesNothingInThePageCache) {
  const TempDir folder;
  if (!has_disk(folder.path())) GTEST_SKIP() << folder.path() << " does not support direct writes";
  const Pages memory(20 * kMebibyte + 24);
  // As in a snapshot: one behind the other, the first one on a page.
  const auto views = [&] {
    std::vector<TensorView> all;
    std::size_t at = 0;
    for (const std::int64_t count :
         {std::int64_t{1000003}, std::int64_t{3000000}, std::int64_t{1242883}}) {
      const std::size_t bytes = static_cast<std::size_t>(count) * 4;
      all.push_back({std::string(1, static_cast<char>('a' + all.size())),
                     TensorType::kF32,
                     {count},
                     memory.bytes().subspan(at, bytes)});
      at += bytes;
    }
    EXPECT_EQ(at, memory.bytes().size());
    return all;
  }();
  const std::string path = folder.path() / "shard";
  auto written = write_safetensors(posix_file_system(), path, views);
  ASSERT_TRUE(written) << written.error().message;
  // The header and the end, which is no whole page.
  EXPECT_LE(cached_pages(path), 2u);

  auto file = posix_file_system().open_file(path);
  auto header = read_safetensors_header(**file, path);
  ASSERT_TRUE(header) << header.error().message;
  const auto contents = contents_of(path);
  EXPECT_EQ(contents.size(), written->bytes);
  for (const TensorView& view : views) {
    const TensorEntry* entry = header->find(view.name);
    ASSERT_NE(entry, nullptr) << view.name;
    EXPECT_TRUE(std::ranges::equal(
        view.bytes, std::span(contents).subspan(entry->begin, entry->end - entry->begin)))
        << view.name;
  }
}

TEST(DirectWriting, TheDataOfALargeFileBeginsOnAPageAndThatOfASmallOneDoesNot) {
  const TempDir folder;
  for (const std::int64_t count : {std::int64_t{100}, std::int64_t{1} << 18}) {
    const std::vector<SampleTensor> tensors = {{"a", TensorType::kF32, {count}, 1}};
    const std::string path = folder.path() / std::to_string(count);
    ASSERT_TRUE(write_safetensors(posix_file_system(), path, test::views_of(tensors)));
    auto file = posix_file_system().open_file(path);
    auto header = read_safetensors_header(**file, path);
    ASSERT_TRUE(header) << header.error().message;
    const std::uint64_t begin = header->tensors[0].begin;
    if (count == 100) {
      EXPECT_LT(begin, 200u);
    } else {
      EXPECT_EQ(begin, kDataAlignment);
    }
    EXPECT_EQ(begin % 8, 0u);
  }
}

// Whatever comes in whatever pieces, in memory that is aligned or not.
TEST(DirectWriting, PiecesOfAllSizesAndPlacesBecomeTheFile) {
  const Pages memory(4 * kMebibyte);
  std::vector<std::string> folders = {std::filesystem::temp_directory_path()};
  if (::access("/dev/shm", W_OK) == 0) folders.emplace_back("/dev/shm");
  for (const std::string& root : folders) {
    for (unsigned seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", root, seed));
      const std::string path = fmt::format("{}/ddp-direct-{}-{}", root, ::getpid(), seed);
      std::mt19937 random(seed);
      const auto below = [&random](std::size_t n) {
        return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
      };
      std::vector<std::byte> expected;
      auto file = posix_file_system().create_file(path);
      ASSERT_TRUE(file) << file.error().message;
      for (int piece = 0; piece < 12; ++piece) {
        // Every other one is aligned, as far as what came before lets it.
        const std::size_t unit = below(2) == 0 ? kDataAlignment : 1;
        const std::size_t at = below(2 * kMebibyte) / unit * unit;
        const std::size_t count = (below(2 * kMebibyte) / unit + 1) * unit;
        const auto bytes = memory.bytes().subspan(at, std::min(count, memory.bytes().size() - at));
        ASSERT_TRUE((*file)->append(bytes));
        expected.insert(expected.end(), bytes.begin(), bytes.end());
        // Back onto a page, or no later piece would ever be.
        const std::size_t rest =
            (kDataAlignment - expected.size() % kDataAlignment) % kDataAlignment;
        if (rest > 0 && below(2) == 0) {
          ASSERT_TRUE((*file)->append(memory.bytes().first(rest)));
          expected.insert(expected.end(), memory.bytes().begin(),
                          memory.bytes().begin() + static_cast<std::ptrdiff_t>(rest));
        }
      }
      ASSERT_TRUE((*file)->sync());
      ASSERT_TRUE((*file)->close());
      const bool equal = contents_of(path) == expected;
      EXPECT_TRUE(equal);
      EXPECT_TRUE(posix_file_system().remove_file(path));
    }
  }
}

}  // namespace
}  // namespace ddp::checkpoint
