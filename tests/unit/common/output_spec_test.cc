#include "common/config/output_spec.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/job_spec.h"

namespace ddp::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RankSet, HasNumbersAndRanges) {
  const auto set = parse_rank_set("0,8-15,123");
  ASSERT_TRUE(set);
  for (const Rank rank : {0, 8, 11, 15, 123}) EXPECT_TRUE(set->contains(rank)) << rank;
  for (const Rank rank : {-1, 1, 7, 16, 12}) EXPECT_EQ(set->contains(rank), rank == 12) << rank;
}

TEST(RankSet, RefusesWhatIsNeither) {
  for (const char* text :
       {"", ",", "1,", ",1", "-1", "1-", "-", "a", "1 ", "2-1", "1-2-3", "0x1", "99999999999"}) {
    const auto set = parse_rank_set(text);
    ASSERT_FALSE(set) << text;
    EXPECT_THAT(set.error().message, HasSubstr("write for example 0,8-15"));
  }
}

TEST(StreamMap, IsOneValueForAllOrOneByRank) {
  const struct {
    const char* text;
    std::vector<int> streams;  // Of local ranks 0, 1, 10, 11 on the second node of 12 workers.
  } cases[] = {
      {"0", {0, 0, 0, 0}},          {"3", {3, 3, 3, 3}},
      {"0:1,1:2", {1, 2, 0, 0}},    {"10:3", {0, 0, 3, 0}},
      {"0-10:1,1:0", {1, 0, 1, 0}}, {"0,10-11:2", {2, 0, 2, 2}},
      {"1:1,1:3", {0, 3, 0, 0}},    {"@12:3", {3, 0, 0, 0}},
      {"@0-11:3", {0, 0, 0, 0}},    {"1:2,@13,22-99:1", {0, 1, 1, 1}},
      {"@13:1,1:2", {0, 2, 0, 0}},
  };
  for (const auto& c : cases) {
    const auto map = parse_stream_map(c.text);
    ASSERT_TRUE(map) << c.text << ": " << map.error().message;
    EXPECT_THAT((std::vector{map->of(12, 0), map->of(13, 1), map->of(22, 10), map->of(23, 11)}),
                testing::ElementsAreArray(c.streams))
        << c.text;
  }
  EXPECT_TRUE(parse_stream_map("0:0,1:0")->none());
  EXPECT_EQ(parse_stream_map("0:1,1:2")->any(), 3);
}

TEST(StreamMap, RefusesTheRest) {
  for (const char* text : {"", "4", "-1", "33", "all", "0:", ":1", "0:4", "0:1,", "0:1,,1:1", "0,1",
                           "0:1:2", "0:1,2", "0:12", "@", "@3", "@:1", "0@1:1", "@@1:1"}) {
    EXPECT_FALSE(parse_stream_map(text)) << text;
  }
}

TEST(Filters, TwoCommasAreOne) {
  EXPECT_THAT(split_filters("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(split_filters("a,,b,c"), ElementsAre("a,b", "c"));
  EXPECT_THAT(split_filters("a,,,b"), ElementsAre("a,", "b"));
  EXPECT_THAT(split_filters(""), ElementsAre());
}

// Streams of rank 9, which is local rank 1.
TEST(Places, FollowTheFlags) {
  const struct {
    const char* redirects;
    const char* tee;
    const char* local_ranks;
    const char* ranks;
    bool log_dir;
    int file;
    int console;
  } cases[] = {
      {"0", "0", "", "", false, 0, 3},    {"0", "0", "", "", true, 3, 3},
      {"3", "0", "", "", true, 3, 0},     {"1", "0", "", "", true, 1, 2},
      {"0", "2", "", "", true, 2, 3},     {"3", "1", "", "", true, 3, 1},
      {"3", "3", "", "", true, 3, 3},     {"@9:3", "0", "", "", true, 3, 0},
      {"1:3", "0", "", "", true, 3, 0},   {"9:3", "0", "", "", true, 0, 3},
      {"@8:3", "0", "", "", true, 0, 3},  {"3", "0", "", "", false, 0, 0},
      {"3", "@9:3", "", "", false, 0, 3}, {"0", "0", "0", "", true, 3, 0},
      {"0", "0", "0-1", "", true, 3, 3},  {"0", "0", "", "1", false, 0, 0},
      {"0", "0", "0", "9", false, 0, 3},  {"2", "0", "1", "", true, 2, 1},
  };
  for (const auto& c : cases) {
    OutputSpec spec;
    spec.redirects = *parse_stream_map(c.redirects);
    spec.tee = *parse_stream_map(c.tee);
    if (*c.local_ranks != '\0') spec.local_ranks = *parse_rank_set(c.local_ranks);
    if (*c.ranks != '\0') spec.ranks = *parse_rank_set(c.ranks);
    const StreamPlaces places = places_of(spec, c.log_dir, 9, 1);
    EXPECT_EQ(places.file, c.file) << c.redirects << " " << c.tee << " " << c.log_dir;
    EXPECT_EQ(places.console, c.console)
        << c.redirects << " " << c.tee << " " << c.local_ranks << " " << c.ranks;
  }
}

TEST(JobSpecOutput, SurvivesTheWayToTheAgent) {
  JobSpec spec;
  spec.output.redirects = *parse_stream_map("0:1,@8-15:3");
  spec.output.ranks = *parse_rank_set("4-5");
  spec.output.stdout_filters = {"a,b"};
  spec.output.has_prefix = true;
  spec.output.prefix = "x";
  spec.expected_hosts = {"n1", "n2"};
  const auto parsed = decode_job_spec(encode(spec));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->output.redirects.of(9, 1), 3);
  EXPECT_EQ(parsed->output.redirects.of(16, 0), 1);
  EXPECT_TRUE(parsed->output.ranks.contains(5));
  EXPECT_THAT(parsed->output.stdout_filters, ElementsAre("a,b"));
  EXPECT_EQ(parsed->output.prefix, "x");
  EXPECT_THAT(parsed->expected_hosts, ElementsAre("n1", "n2"));
}

TEST(JobFolder, IsOnePathComponent) {
  EXPECT_EQ(job_folder_name("a/b"), "a_b");
  EXPECT_EQ(job_folder_name(".."), "job_..");
  EXPECT_EQ(job_folder_name(""), "job_");
}

}  // namespace
}  // namespace ddp::config
