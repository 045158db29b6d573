#include "common/config/job_rules.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace ddp::config {
namespace {

struct Changed {
  const char* field;
  void (*change)(JobRules&);
  const char* text;
};

// Each field once, with the line that tells of it.
const std::vector<Changed>& changes() {
  static const std::vector<Changed> all{
      {"min_nodes", [](JobRules& r) { r.min_nodes = 2; }, "--nnodes is 2:4 on b and 1:4 on a"},
      {"max_nodes", [](JobRules& r) { r.max_nodes = 1; }, "--nnodes is 1 on b and 1:4 on a"},
      {"max_restarts", [](JobRules& r) { r.max_restarts = 5; },
       "--max-restarts is 5 on b and 0 on a"},
      {"restart_on_start_failure", [](JobRules& r) { r.restart_on_start_failure = true; },
       "--restart-on-start-failure is given on b and not given on a"},
      {"max_no_progress", [](JobRules& r) { r.max_no_progress = 0; },
       "--max-no-progress is 0 on b and 3 on a"},
      {"max_node_failures", [](JobRules& r) { r.max_node_failures = 0; },
       "--max-node-failures is 0 on b and 3 on a"},
      {"join_timeout_ms", [](JobRules& r) { r.join_timeout_ms = 60'000; },
       "--join-timeout is 60 s on b and 600 s on a"},
      {"last_call_ms", [](JobRules& r) { r.last_call_ms = 250; },
       "--last-call is 0.25 s on b and 30 s on a"},
      {"stop_timeout_ms", [](JobRules& r) { r.stop_timeout_ms = 0; },
       "--shutdown-timeout is 0 s on b and 30 s on a"},
      {"scale_up_ms", [](JobRules& r) { r.scale_up_ms = 5'000; },
       "--scale-up-timeout is 5 s on b and 60 s on a"},
      {"lease_ms", [](JobRules& r) { r.lease_ms = 1'500; }, "--lease is 1.5 s on b and 5 s on a"},
      {"exclude_stragglers", [](JobRules& r) { r.exclude_stragglers = 1.5; },
       "--exclude-stragglers is 1.5 on b and not given on a"},
  };
  return all;
}

JobRules one_to_four_nodes() {
  JobRules rules;
  rules.max_nodes = 4;
  return rules;
}

TEST(JobRules, EachDifferenceIsNamedWithBothValuesAndNodes) {
  const JobRules a = one_to_four_nodes();
  EXPECT_EQ(difference(a, "b", a, "a"), "");
  for (const Changed& changed : changes()) {
    JobRules b = a;
    changed.change(b);
    EXPECT_NE(a, b) << changed.field;
    EXPECT_EQ(difference(b, "b", a, "a"), changed.text) << changed.field;
  }
}

TEST(JobRules, EachFieldIsWrittenAndRead) {
  const nlohmann::json json = one_to_four_nodes();
  // A field that JSON has and the list above has not would be one whose difference nobody has seen.
  EXPECT_EQ(json.size(), changes().size());
  for (const Changed& changed : changes()) {
    JobRules rules = one_to_four_nodes();
    changed.change(rules);
    const nlohmann::json other = rules;
    EXPECT_NE(other.at(changed.field), json.at(changed.field)) << changed.field;
    EXPECT_EQ(other.get<JobRules>(), rules) << changed.field;
  }
  EXPECT_EQ(nlohmann::json::object().get<JobRules>(), JobRules());
}

TEST(JobRules, WhatNobodyCanMeanIsNamed) {
  EXPECT_EQ(out_of_range(one_to_four_nodes()), "");
  const auto complaint = [](void (*change)(JobRules&)) {
    JobRules rules = one_to_four_nodes();
    change(rules);
    return out_of_range(rules);
  };
  EXPECT_EQ(complaint([](JobRules& r) { r.max_nodes = 0; }),
            "the largest number of nodes is 0; it must be from 1 to 1000000");
  EXPECT_EQ(complaint([](JobRules& r) { r.min_nodes = 9; }),
            "the smallest number of nodes is 9; it must be from 1 to 4");
  EXPECT_EQ(complaint([](JobRules& r) { r.max_restarts = -1; }),
            "--max-restarts is -1; it must be from 0 to 1000000");
  EXPECT_EQ(complaint([](JobRules& r) { r.max_no_progress = 1'000'001; }),
            "--max-no-progress is 1000001; it must be from 0 to 1000000");
  EXPECT_THAT(complaint([](JobRules& r) { r.join_timeout_ms = -1; }),
              testing::HasSubstr("--join-timeout in ms is -1"));
  EXPECT_THAT(complaint([](JobRules& r) { r.last_call_ms = -1; }),
              testing::HasSubstr("--last-call in ms is -1"));
  EXPECT_THAT(complaint([](JobRules& r) { r.stop_timeout_ms = INT64_MAX; }),
              testing::HasSubstr("--shutdown-timeout in ms is 9223372036854775807"));
  EXPECT_THAT(complaint([](JobRules& r) { r.scale_up_ms = -1; }),
              testing::HasSubstr("--scale-up-timeout in ms is -1"));
  EXPECT_EQ(complaint([](JobRules& r) { r.lease_ms = 0; }),
            "--lease in ms is 0; it must be from 500 to 3600000");
  EXPECT_EQ(complaint([](JobRules& r) { r.exclude_stragglers = -1.5; }),
            "--exclude-stragglers is -1.5; it must be from 0 to 100");
}

}  // namespace
}  // namespace ddp::config
