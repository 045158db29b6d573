#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/etcd/stored_state.h"

namespace ddp::etcd {
namespace {

TEST(JobRecord, KeysHaveOneSlashBetweenPrefixAndJob) {
  for (const char* prefix : {"/ddp-run", "/ddp-run/"}) {
    EXPECT_EQ(keys_of(prefix, "run1").leader, "/ddp-run/run1/leader");
    EXPECT_EQ(keys_of(prefix, "run1").state, "/ddp-run/run1/state");
  }
}

TEST(JobRecord, GoesThroughJson) {
  StoredState state;
  state.coordinators = 3;
  state.record = {.job_id = "run1",
                  .next_round = (Round{1} << 52) + 1,
                  .restarts = 2,
                  .best_step = 1'234'567'890'123,
                  .no_progress = 1,
                  .finished = false,
                  .result = {}};
  auto back = parse_state(to_json(state));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->coordinators, 3);
  EXPECT_EQ(back->record.job_id, "run1");
  EXPECT_EQ(back->record.next_round, state.record.next_round);
  EXPECT_EQ(back->record.restarts, 2);
  EXPECT_EQ(back->record.best_step, state.record.best_step);
  EXPECT_EQ(back->record.no_progress, 1);
  EXPECT_FALSE(back->record.finished);

  state.record.finished = true;
  state.record.result = {137, "rank 1 failed", "a report\nof two lines, with \xFF in it",
                         R"({"message":{"message":"why"}})"};
  back = parse_state(to_json(state));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(back->record.finished);
  EXPECT_EQ(back->record.result.exit_code, 137);
  EXPECT_EQ(back->record.result.summary, "rank 1 failed");
  EXPECT_THAT(back->record.result.report, testing::StartsWith("a report\nof two lines, with "));
  EXPECT_EQ(back->record.result.error, state.record.result.error);

  const Leader leader{"n1", "node1", "fd00::1", 29400};
  EXPECT_EQ(*parse_leader(to_json(leader)), leader);
}

TEST(JobRecord, OthersBytesAreRefused) {
  for (const char* text :
       {"", "x", "[]", "{}", R"({"job_id":"a"})", R"({"job_id":7,"next_round":1})",
        R"({"job_id":"a","next_round":"1"})"}) {
    const auto state = parse_state(text);
    ASSERT_FALSE(state) << text;
    EXPECT_EQ(state.error().code, Errc::kCorrupt);
  }
  EXPECT_FALSE(parse_leader(R"({"address":"10.0.0.1"})"));
  EXPECT_FALSE(parse_leader(R"({"port":1})"));
}

// As an earlier version has stored it.
TEST(JobRecord, AResultWithoutAnErrorFileHasNone) {
  const auto state = parse_state(R"({"job_id":"a","next_round":4,"result":{"exit_code":7}})");
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->record.result.exit_code, 7);
  EXPECT_EQ(state->record.result.error, "");
}

// A later version may add members.
TEST(JobRecord, UnknownMembersAreIgnored) {
  EXPECT_EQ(parse_state(R"({"job_id":"a","next_round":4,"colour":"red"})")->record.next_round, 4);
}

}  // namespace
}  // namespace ddp::etcd
