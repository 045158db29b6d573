#include "worker/train/idx.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/support/temp_dir.h"

namespace ddp::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

void append_number(Bytes& bytes, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<std::uint8_t>(number >> shift));
  }
}

Bytes image_file(std::uint32_t count, std::uint32_t rows = 3, std::uint32_t columns = 2) {
  Bytes bytes;
  for (const std::uint32_t number : {0x803U, count, rows, columns}) append_number(bytes, number);
  for (std::uint32_t i = 0; i < count * rows * columns; ++i) {
    bytes.push_back(static_cast<std::uint8_t>(i * 7 % 256));
  }
  return bytes;
}

Bytes label_file(std::uint32_t count) {
  Bytes bytes;
  append_number(bytes, 0x801);
  append_number(bytes, count);
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(i % 10));
  return bytes;
}

class IdxTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  std::string write(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }

  std::string write_gz(const std::string& name, const Bytes& bytes) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
    return path(name);
  }

  Bytes read(const std::string& file_path) const {
    std::ifstream file(file_path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  // Reads the pair and expects the failure.
  void expect_error(const std::string& images, const std::string& labels, Errc code,
                    const ::testing::Matcher<const std::string&>& message) const {
    const auto set = read_idx_pair(images, labels);
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().code, code) << set.error().message;
    EXPECT_THAT(set.error().message, message);
  }

 private:
  test::TempDir folder_;
};

TEST_F(IdxTest, PlainAndGzippedFilesGiveTheSameImages) {
  const auto plain = read_idx_pair(write("i", image_file(12)), write("l", label_file(12)));
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->count, 12U);
  EXPECT_EQ(plain->rows, 3U);
  EXPECT_EQ(plain->columns, 2U);
  ASSERT_EQ(plain->pixels.size(), 72U);
  EXPECT_EQ(plain->pixels[71], 71 * 7 % 256);
  EXPECT_EQ(plain->labels[11], 1);
  const auto gzipped =
      read_idx_pair(write_gz("i.gz", image_file(12)), write_gz("l.gz", label_file(12)));
  ASSERT_TRUE(gzipped) << gzipped.error().message;
  EXPECT_EQ(gzipped->pixels, plain->pixels);
  EXPECT_EQ(gzipped->labels, plain->labels);
}

TEST_F(IdxTest, EveryTruncationOfAPlainFileIsRefused) {
  const Bytes whole = image_file(2);
  const std::string labels = write("l", label_file(2));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto end = whole.begin() + static_cast<std::ptrdiff_t>(size);
    const std::string images = write("i", Bytes(whole.begin(), end));
    expect_error(images, labels, Errc::kCorrupt,
                 AllOf(HasSubstr(images), HasSubstr(": " + std::to_string(size) + " bytes")));
  }
}

TEST_F(IdxTest, EveryTruncationOfAGzippedFileIsRefused) {
  const std::string labels = write("l", label_file(40));
  const Bytes whole = read(write_gz("i.gz", image_file(40)));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto end = whole.begin() + static_cast<std::ptrdiff_t>(size);
    const std::string images = write("cut.gz", Bytes(whole.begin(), end));
    expect_error(images, labels, Errc::kCorrupt, HasSubstr(images));
  }
}

TEST_F(IdxTest, AFlippedByteInAGzippedFileIsRefusedOrHarmless) {
  const std::string labels = write("l", label_file(40));
  const Bytes whole = read(write_gz("i.gz", image_file(40)));
  const auto intact = read_idx_pair(path("i.gz"), labels);
  ASSERT_TRUE(intact) << intact.error().message;
  int harmless = 0;  // Deflate has a few bits that may be either.
  for (std::size_t at = 10; at < whole.size(); ++at) {  // The ten bytes before are gzip's header.
    Bytes flipped = whole;
    flipped[at] ^= 0x40;
    const auto set = read_idx_pair(write("flipped.gz", flipped), labels);
    if (set) {
      ++harmless;
      EXPECT_EQ(set->pixels, intact->pixels) << "byte " << at;
    } else {
      EXPECT_EQ(set.error().code, Errc::kCorrupt);
    }
  }
  EXPECT_LT(harmless, 3);
}

TEST_F(IdxTest, BytesAfterTheEndAreRefused) {
  Bytes images = image_file(2);
  images.push_back(0);
  expect_error(write("i", images), write("l", label_file(2)), Errc::kCorrupt,
               AllOf(HasSubstr("too long"), HasSubstr("28 bytes")));
  Bytes labels = label_file(2);
  labels.push_back(0);
  expect_error(write("i", image_file(2)), write("l", labels), Errc::kCorrupt,
               AllOf(HasSubstr("too long"), HasSubstr("10 bytes")));
}

TEST_F(IdxTest, TheMagicNumberTellsImagesFromLabels) {
  const std::string images = write("i", image_file(2));
  const std::string labels = write("l", label_file(2));
  expect_error(labels, images, Errc::kCorrupt,
               AllOf(HasSubstr(labels), HasSubstr("2049"), HasSubstr("expected 2051")));
  expect_error(images, images, Errc::kCorrupt,
               AllOf(HasSubstr("2051"), HasSubstr("expected 2049")));
}

TEST_F(IdxTest, FilesWithDifferentCountsDoNotBelongTogether) {
  expect_error(write("i", image_file(3)), write("l", label_file(2)), Errc::kCorrupt,
               AllOf(HasSubstr("2 labels"), HasSubstr("expected 3")));
}

TEST_F(IdxTest, ALabelAboveNineIsRefused) {
  Bytes labels = label_file(3);
  labels.back() = 10;
  expect_error(write("i", image_file(3)), write("l", labels), Errc::kCorrupt,
               AllOf(HasSubstr("label 10 of image 2"), HasSubstr("0 to 9")));
}

TEST_F(IdxTest, AHeaderThatClaimsTooMuchIsNotBelieved) {
  const std::string labels = write("l", label_file(2));
  Bytes huge;
  for (const std::uint32_t number : {0x803U, 0xffffffffU, 4096U, 4096U})
    append_number(huge, number);
  expect_error(write("i", huge), labels, Errc::kCorrupt, HasSubstr("at most"));
  expect_error(write("i", image_file(0)), labels, Errc::kCorrupt, HasSubstr("0 images"));
  expect_error(write("i", image_file(2, 0, 5)), labels, Errc::kCorrupt, HasSubstr("0 x 5"));
  // 3.3 GB claimed, 28 bytes there: found out without taking the memory.
  Bytes large = image_file(2);
  large[4] = 0x20;
  expect_error(write("i", large), labels, Errc::kCorrupt, HasSubstr("28 bytes"));
}

TEST_F(IdxTest, AMissingFileIsNamed) {
  expect_error(path("i"), path("l"), Errc::kNotFound, HasSubstr(path("i")));
  expect_error(write("i", image_file(2)), path("l"), Errc::kNotFound, HasSubstr(path("l")));
}

TEST_F(IdxTest, AFolderInPlaceOfAFileIsAnError) {
  std::filesystem::create_directory(path("i"));
  expect_error(path("i"), path("l"), Errc::kIo, HasSubstr(path("i")));
}

TEST_F(IdxTest, MnistIsFoundByItsNamesPlainOrGzipped) {
  write_gz("train-images-idx3-ubyte.gz", image_file(5, 28, 28));
  write("train-labels-idx1-ubyte", label_file(5));
  const std::string folder = path("");
  const auto set = read_mnist(folder, MnistPart::kTrain);
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_EQ(set->count, 5U);
  const auto test_set = read_mnist(folder, MnistPart::kTest);
  ASSERT_FALSE(test_set);
  EXPECT_EQ(test_set.error().code, Errc::kNotFound);
  EXPECT_THAT(test_set.error().message, HasSubstr("t10k-images-idx3-ubyte"));
}

TEST_F(IdxTest, MnistImagesHave28By28Pixels) {
  write("t10k-images-idx3-ubyte", image_file(5, 28, 27));
  write("t10k-labels-idx1-ubyte", label_file(5));
  const auto set = read_mnist(path(""), MnistPart::kTest);
  ASSERT_FALSE(set);
  EXPECT_THAT(set.error().message, AllOf(HasSubstr("28 x 27"), HasSubstr("expected 28 x 28")));
}

}  // namespace
}  // namespace ddp::train
