#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/json_values.h"
#include "worker/checkpoint/manifest.h"

namespace ddp::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Manifest sample() {
  Manifest manifest;
  manifest.step = 1234;
  manifest.epoch = 5;
  manifest.world_size = 2;
  manifest.round = 7;
  manifest.seconds = 0.1;
  manifest.state = {{"lr", 0.1}, {"name", "line\nand \"quote\" é"}, {"n", -3}, {"on", true}};
  manifest.rank_state = {{{"position", 1}}, {{"position", 2}}};
  manifest.files = {{"shard-00000.safetensors", 100, std::string(32, 'a')},
                    {"rank-00001.safetensors", 0, std::string(32, '0')}};
  manifest.tensors = {
      {"w", kReplicated, "shard-00000.safetensors", TensorType::kF32, {2, 3}, std::string(32, '1')},
      {"w", 1, "rank-00001.safetensors", TensorType::kU8, {}, std::string(32, '2')}};
  return manifest;
}

// The text with one piece replaced and the checksum made right again.
std::string forged(const std::string& from, const std::string& to) {
  std::string text = manifest_to_text(sample()).value();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::size_t tail = text.rfind("\"checksum\":\"");
  text.replace(tail + 12, 32, checksum_of(std::string_view(text).substr(0, tail)));
  return text;
}

TEST(Manifest, RoundTrips) {
  auto text = manifest_to_text(sample());
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_TRUE(json::accept(*text));
  auto back = parse_manifest(*text);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(manifest_to_text(*back).value(), *text);
  EXPECT_EQ(back->step, 1234);
  EXPECT_EQ(back->epoch, 5);
  EXPECT_EQ(back->round, 7);
  EXPECT_EQ(back->seconds, 0.1);
  EXPECT_EQ(back->state, sample().state);
  EXPECT_EQ(back->rank_state, sample().rank_state);
  ASSERT_EQ(back->tensors.size(), 2u);
  EXPECT_EQ(back->tensors[0].rank, kReplicated);
  EXPECT_EQ(back->tensors[1].rank, 1);
  EXPECT_EQ(back->tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(back->find_file("rank-00001.safetensors")->bytes, 0u);
}

TEST(Manifest, OneOfAnOlderProgramDoesNotSayHowLongWritingTook) {
  const auto older = parse_manifest(forged("\"seconds\":0.1,\n", ""));
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_LT(older->seconds, 0);
}

TEST(Manifest, EveryFlippedByteAndTruncationIsCorrupt) {
  const std::string text = manifest_to_text(sample()).value();
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      auto parsed = parse_manifest(damaged);
      ASSERT_FALSE(parsed) << "byte " << i << " bit " << bit;
      EXPECT_EQ(parsed.error().code, Errc::kCorrupt);
    }
    EXPECT_FALSE(parse_manifest(text.substr(0, i)));
  }
  EXPECT_FALSE(parse_manifest(text + " "));
}

TEST(Manifest, RefusesWhatDoesNotFitTogether) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"\"ddp-checkpoint\"", "\"other\"", "format"},
      {"\"step\":1234", "\"step\":-1", "step -1"},
      {"\"step\":1234", "\"stop\":1234", "missing"},
      {"\"step\":1234", "\"step\":\"1\"", "the wrong type"},
      {"\"world_size\":2", "\"world_size\":3", "rank_state has 2"},
      {"\"world_size\":2", "\"world_size\":0", "world size 0"},
      {"\"epoch\":5", "\"epoch\":5,\"epoch\":5", "twice"},
      {"\"epoch\":5", "\"epoch\":9.2e48", "9.2e+48 is not an integer from"},
      {"\"epoch\":5", "\"epoch\":5.5", "5.5 is not an integer from"},
      {"\"epoch\":5", "\"epoch\":9223372036854775808",
       "9223372036854775808 is not an integer from"},
      {"\"rank\":1", "\"rank\":2", "belongs to rank 2"},
      {"\"name\":\"rank-00001.safetensors\"", "\"name\":\"../x\"", "is not a file name"},
      {"\"name\":\"rank-00001.safetensors\"", "\"name\":\"manifest.json\"", "is not a file name"},
      {"\"name\":\"rank-00001.safetensors\"", "\"name\":\"shard-00000.safetensors\"", "twice"},
      {"\"file\":\"rank-00001.safetensors\"", "\"file\":\"elsewhere\"", "not listed"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F31\"", "malformed"},
      {"\"shape\":[2,3]", "\"shape\":[2,-3]", "malformed"},
      {std::string(32, 'a'), std::string(32, 'A'), "malformed"},
  };
  for (const auto& [from, to, reason] : cases) {
    auto parsed = parse_manifest(forged(from, to));
    ASSERT_FALSE(parsed) << to;
    EXPECT_EQ(parsed.error().code, Errc::kCorrupt) << parsed.error().message;
    EXPECT_THAT(parsed.error().message, HasSubstr(reason)) << to;
  }
}

TEST(Manifest, AnotherVersionIsAMismatchThatNamesBoth) {
  auto parsed = parse_manifest(forged("\"version\":1", "\"version\":2"));
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Errc::kMismatch);
  EXPECT_THAT(parsed.error().message, HasSubstr("version is 2, but this program reads version 1"));
}

TEST(Manifest, ReadersIgnoreMembersTheyDoNotKnow) {
  EXPECT_TRUE(parse_manifest(forged("\"epoch\":5", "\"epoch\":5,\"later\":{\"a\":[1]}")));
}

TEST(Manifest, RefusesToWriteWhatItCouldNotRead) {
  Manifest twice = sample();
  twice.tensors.push_back(twice.tensors[0]);
  Manifest of_two_ranks = sample();  // No file can have two tensors of one name.
  of_two_ranks.tensors.push_back(of_two_ranks.tensors[0]);
  of_two_ranks.tensors.back().rank = of_two_ranks.tensors[0].rank == 0 ? 1 : 0;
  Manifest deep = sample();
  for (int i = 0; i < 100; ++i) deep.state = {{"deeper", deep.state}};
  Manifest not_utf8 = sample();
  not_utf8.state["text"] = "\xff";
  Manifest bad_name = sample();
  bad_name.tensors[0].name = "\xff";
  for (const Manifest& manifest : {twice, of_two_ranks, deep, not_utf8, bad_name}) {
    auto text = manifest_to_text(manifest);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, Errc::kInvalidArgument);
  }
}

// Through text and back.
json through_text(const json& value) {
  auto encoded = encode_values(value);
  EXPECT_TRUE(encoded);
  auto parsed = parse_strict(encoded->dump(), 64);
  EXPECT_TRUE(parsed);
  return decode_values(*parsed).value();
}

TEST(JsonValues, EveryDoubleComesBackBitForBit) {
  std::mt19937_64 dice(20240607);
  std::vector<std::uint64_t> patterns = {
      0,
      std::bit_cast<std::uint64_t>(-0.0),
      1,
      std::bit_cast<std::uint64_t>(0.1),
      std::bit_cast<std::uint64_t>(1e-3 / 3),
      std::bit_cast<std::uint64_t>(std::numeric_limits<double>::max()),
      std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity()),
      std::bit_cast<std::uint64_t>(-std::numeric_limits<double>::infinity()),
      0x7ff8000000000001,
      0xfff0000000000001};
  for (int i = 0; i < 20000; ++i) patterns.push_back(dice());
  for (const std::uint64_t bits : patterns) {
    const json back = through_text({{"list", {std::bit_cast<double>(bits)}}});
    ASSERT_TRUE(back["list"][0].is_number_float()) << std::hex << bits;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back["list"][0].get<double>()), bits)
        << std::hex << bits;
  }
}

TEST(JsonValues, IntegersStringsAndShapesComeBack) {
  const json value = {{"big", std::numeric_limits<std::int64_t>::min()},
                      {"bigger", std::numeric_limits<std::uint64_t>::max()},
                      {"text", std::string("a\0b", 3)},
                      {"none", nullptr},
                      {"empty", json::object()},
                      {"two", {{"$float", "x"}, {"other", 1}}}};
  EXPECT_EQ(through_text(value), value);
}

TEST(JsonValues, RefusesWhatTextCannotCarryAndNamesThePlace) {
  auto binary = encode_values({{"a", {1, json::binary({1, 2})}}});
  ASSERT_FALSE(binary);
  EXPECT_THAT(binary.error().message, HasSubstr("/a/1"));
  auto reserved = encode_values({{"a", {{"$float", 1}}}});
  ASSERT_FALSE(reserved);
  EXPECT_THAT(reserved.error().message, HasSubstr("/a: "));
  for (const char* bits : {"", "12", "zzzzzzzzzzzzzzzz", "-ff8000000000001", "7ff80000000000010"}) {
    EXPECT_FALSE(decode_values({{"$float", bits}})) << bits;
  }
}

TEST(Checksum, IsXxh3OfTheBytesHoweverTheyArrive) {
  // From `printf abc | xxhsum -H2`.
  EXPECT_EQ(checksum_of(std::string_view("abc")), "06b05ab6733a618578af5f94892f3950");
  Checksum pieces;
  for (const char c : {'a', 'b', 'c'}) pieces.update(std::as_bytes(std::span(&c, 1)));
  EXPECT_EQ(pieces.hex(), checksum_of(std::string_view("abc")));
  pieces.reset();
  EXPECT_EQ(pieces.hex(), checksum_of(std::string_view("")));
}

}  // namespace
}  // namespace ddp::checkpoint
