#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/memory_file_system.h"

namespace ddp::checkpoint {
namespace {

using test::MemoryFileSystem;
using test::SampleTensor;
using ::testing::HasSubstr;

// A file: the length of the header, the header, and `data_bytes` zeros.
std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    text[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  }
  return text.append(header).append(data_bytes, '\0');
}

Result<SafetensorsHeader> parse(const std::string& bytes) {
  MemoryFileSystem files;
  EXPECT_TRUE(write_durably(files, "f", bytes));
  auto file = files.open_file("f");
  return read_safetensors_header(**file, "f");
}

TEST(Safetensors, RoundTripsEveryTypeAndShape) {
  std::vector<SampleTensor> tensors;
  for (int i = 0; i < kTensorTypeCount; ++i) {
    const auto type = static_cast<TensorType>(i);
    const std::string name(tensor_type_name(type));
    tensors.emplace_back(name + "/matrix", type, std::vector<std::int64_t>{3, 5}, i);
    tensors.emplace_back(name + "/scalar", type, std::vector<std::int64_t>{}, i);
    tensors.emplace_back(name + "/empty", type, std::vector<std::int64_t>{0}, i);
    tensors.emplace_back(name + "/hollow", type, std::vector<std::int64_t>{4, 0, 1L << 40}, i);
  }
  MemoryFileSystem files;
  files.limit_writes(7);
  auto written = write_safetensors(files, "f", test::views_of(tensors), {{"by", "a \"test\" \n"}});
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(written->bytes, files.contents("f")->size());

  auto file = files.open_file("f");
  auto header = read_safetensors_header(**file, "f");
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->metadata.at("by"), "a \"test\" \n");
  ASSERT_EQ(header->tensors.size(), tensors.size());
  for (const SampleTensor& tensor : tensors) {
    const TensorEntry* entry = header->find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->type, tensor.type);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(entry->begin % tensor_type_bytes(tensor.type), 0u) << tensor.name;
    EXPECT_EQ(files.contents("f")->substr(entry->begin, entry->end - entry->begin), tensor.bytes);
  }
}

TEST(Safetensors, AFileWithoutTensorsIsOneObject) {
  MemoryFileSystem files;
  ASSERT_TRUE(write_safetensors(files, "f", {}));
  EXPECT_EQ(*files.contents("f"), file_of("{}      ", 0));
  auto header = parse(*files.contents("f"));
  ASSERT_TRUE(header);
  EXPECT_TRUE(header->tensors.empty());
}

TEST(Safetensors, DataBeginsAtAMultipleOfEight) {
  for (int length = 1; length < 20; ++length) {
    MemoryFileSystem files;
    const std::vector<SampleTensor> tensors = {
        {std::string(static_cast<std::size_t>(length), 'n'), TensorType::kF64, {1}}};
    ASSERT_TRUE(write_safetensors(files, "f", test::views_of(tensors)));
    auto header = parse(*files.contents("f"));
    ASSERT_TRUE(header);
    EXPECT_EQ(header->tensors[0].begin % 8, 0u);
  }
}

TEST(Safetensors, RefusesToWriteWhatCannotBeRead) {
  MemoryFileSystem files;
  const SampleTensor good("a", TensorType::kF32, {2});
  const SampleTensor reserved("__metadata__", TensorType::kF32, {2});
  const SampleTensor not_utf8("\xff", TensorType::kF32, {2});
  TensorView wrong = good.view();
  wrong.shape = {3};
  for (const std::vector<TensorView>& tensors : std::vector<std::vector<TensorView>>{
           {good.view(), good.view()}, {reserved.view()}, {not_utf8.view()}, {wrong}}) {
    auto written = write_safetensors(files, "f", tensors);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::kInvalidArgument);
    EXPECT_EQ(files.contents("f"), nullptr);
  }
}

TEST(Safetensors, EveryTruncationIsCorrupt) {
  MemoryFileSystem files;
  const std::vector<SampleTensor> tensors = {{"weights", TensorType::kF32, {2, 2}},
                                             {"flags", TensorType::kBool, {3}}};
  ASSERT_TRUE(write_safetensors(files, "f", test::views_of(tensors), {{"k", "v"}}));
  const std::string whole = *files.contents("f");
  ASSERT_TRUE(parse(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    auto header = parse(whole.substr(0, size));
    ASSERT_FALSE(header) << size << " of " << whole.size();
    EXPECT_EQ(header.error().code, Errc::kCorrupt) << header.error().message;
  }
  EXPECT_FALSE(parse(whole + '\0'));
}

TEST(Safetensors, NoFlippedBitOfTheHeaderCrashesTheReader) {
  MemoryFileSystem files;
  const std::vector<SampleTensor> tensors = {{"weights", TensorType::kF32, {2, 2}},
                                             {"flags", TensorType::kBool, {3}}};
  ASSERT_TRUE(write_safetensors(files, "f", test::views_of(tensors), {{"k", "v"}}));
  const std::string whole = *files.contents("f");
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      auto header = parse(damaged);
      if (header) continue;  // A changed name is still a header; the checksum finds it.
      ++refused;
      EXPECT_EQ(header.error().code, Errc::kCorrupt) << header.error().message;
    }
  }
  EXPECT_GT(refused, 500);
}

struct Malformed {
  const char* header;
  std::size_t data_bytes;
  const char* reason;
};

TEST(Safetensors, MalformedHeadersAreCorruptWithTheReason) {
  const Malformed cases[] = {
      {"", 0, "not a JSON object"},
      {"   ", 0, "not a JSON object"},
      {" {}", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {"{}\n", 0, "not a JSON object"},
      {"{}{}", 0, "not JSON"},
      {"{\"a\":}", 0, "not JSON"},
      {"{\"\xff\":1}", 0, "not JSON"},
      {R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "levels deep"},
      {R"({"a":1})", 0, "not an object"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"k":1}})", 0, "not a string"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "lacks one of"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1, "unknown key"},
      {R"({"a":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}})", 1, "dtype \"U7\""},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1, "dtype of tensor"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "not an array"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "-1, which is not a size"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "not a size"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1,
       "not a size"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1,
       "not a size"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "too large"},
      {R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
       "too large"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "not two positions"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}})", 1, "not two positions"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "lies at [1, 0)"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}})", 3, "has 4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2, "which has 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "which has 1"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "a hole"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "an overlap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "\"a\" appears twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "\"dtype\" appears twice"},
  };
  for (const Malformed& item : cases) {
    auto header = parse(file_of(item.header, item.data_bytes));
    ASSERT_FALSE(header) << item.header;
    EXPECT_EQ(header.error().code, Errc::kCorrupt) << item.header;
    EXPECT_THAT(header.error().message, HasSubstr(item.reason)) << item.header;
  }
}

TEST(Safetensors, LengthsBeyondTheFileOrTheLimitAllocateNothing) {
  std::string huge = file_of("{}", 0);
  huge[6] = 1;
  auto over_limit = parse(huge);
  ASSERT_FALSE(over_limit);
  EXPECT_THAT(over_limit.error().message, HasSubstr("at most 100000000"));
  std::string longer = file_of("{}", 0);
  longer[0] = 3;
  auto too_long = parse(longer);
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().message, HasSubstr("has only 2 more"));
}

TEST(Safetensors, DeepNestingIsRefusedEarly) {
  std::string deep = "{\"a\":" + std::string(1000000, '[') + "}";
  auto header = parse(file_of(deep, 0));
  ASSERT_FALSE(header);
  EXPECT_THAT(header.error().message, HasSubstr("levels deep"));
}

}  // namespace
}  // namespace ddp::checkpoint
