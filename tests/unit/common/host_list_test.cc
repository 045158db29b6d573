#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/slurm_list.h"

namespace ddp::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct HostCase {
  std::string text;
  std::vector<std::string> names;
};

TEST(HostList, IsExpandedAsSlurmMeansIt) {
  const std::vector<HostCase> cases = {
      {"n1", {"n1"}},
      {"n1,n2", {"n1", "n2"}},
      {"n[1-3]", {"n1", "n2", "n3"}},
      {"n[01-03,7]", {"n01", "n02", "n03", "n7"}},
      {"n[1,3-4,2]", {"n1", "n3", "n4", "n2"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[098-101]", {"n098", "n099", "n100", "n101"}},
      {"n[5-5]", {"n5"}},
      {"n[00]", {"n00"}},
      {"n[01-03,7],gpu-a[1-2]-ib", {"n01", "n02", "n03", "n7", "gpu-a1-ib", "gpu-a2-ib"}},
      {"r[0-1]n[0-1]", {"r0n0", "r0n1", "r1n0", "r1n1"}},
      {"r[0-1][08-10]x", {"r008x", "r009x", "r010x", "r108x", "r109x", "r110x"}},
      {"[1-2]", {"1", "2"}},
      {"a.b-c_d[1-2].e", {"a.b-c_d1.e", "a.b-c_d2.e"}},
      {"n1,n1", {"n1", "n1"}},
      {"n[999999999999999998-999999999999999999]", {"n999999999999999998", "n999999999999999999"}},
  };
  for (const HostCase& each : cases) {
    const auto names = expand_host_list(each.text);
    ASSERT_TRUE(names) << each.text << ": " << names.error().message;
    EXPECT_EQ(*names, each.names) << each.text;
  }
}

struct ErrorCase {
  std::string text;
  std::string says;
};

TEST(HostList, WhatItCannotReadItNamesWithThePlace) {
  const std::vector<ErrorCase> cases = {
      {"", "character 1: a name is missing"},
      {"a,", "character 3: a name is missing"},
      {",a", "character 1: a name is missing"},
      {"a,,b", "character 3: a name is missing"},
      {"n[1-2", "expected a number, a comma, - or ]"},
      {"n[]", "character 3: a number is missing"},
      {"n[1,]", "a number is missing"},
      {"n[1-]", "a number is missing"},
      {"n[-2]", "a number is missing"},
      {"n[1-2-3]", "expected a number, a comma, - or ]"},
      {"n[3-1]", "the range 3-1 goes backwards"},
      {"n[a-b]", "a number is missing"},
      {"n[000x133]", "expected a number, a comma, - or ]"},
      {"n[1[2]]", "expected a number, a comma, - or ]"},
      {"n]", "']' is not allowed in a host name"},
      {"n(1)", "'(' is not allowed in a host name"},
      {"a b", "'\\x20' is not allowed in a host name"},
      {"a\nb", "'\\x0a' is not allowed in a host name"},
      {"n[1234567890123456789]", "more than 18 digits"},
      {std::string(254, 'n'), "more than 253 characters"},
      {std::string(250, 'n') + "[1-1000]", "more than 253 characters"},
  };
  for (const ErrorCase& each : cases) {
    const auto names = expand_host_list(each.text);
    ASSERT_FALSE(names) << each.text;
    EXPECT_EQ(names.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(names.error().message, HasSubstr(each.says)) << each.text;
  }
}

TEST(HostList, NeverBecomesLongerThanItsLimit) {
  EXPECT_EQ(expand_host_list("n[1-10]", 10)->size(), 10U);
  for (const char* text : {"n[1-11]", "n[1-5,1-6]", "n[1-10],m", "n[1-3]m[1-4]",
                           "n[0-999999999999999999]", "n[1-9][1-9][1-9][1-9][1-9][1-9][1-9]"}) {
    const auto names = expand_host_list(text, 10);
    ASSERT_FALSE(names) << text;
    EXPECT_THAT(names.error().message, HasSubstr("more than 10 hosts")) << text;
  }
  EXPECT_EQ(expand_host_list("n[0-65535]")->size(), kMaxListedHosts);
  EXPECT_FALSE(expand_host_list("n[0-65536]"));
}

TEST(TaskCounts, AreOneForEachNode) {
  EXPECT_THAT(*expand_task_counts("1"), ElementsAre(1));
  EXPECT_THAT(*expand_task_counts("4(x3),2"), ElementsAre(4, 4, 4, 2));
  EXPECT_THAT(*expand_task_counts("2,1(x2),3"), ElementsAre(2, 1, 1, 3));
  EXPECT_EQ(expand_task_counts("1(x65536)")->size(), kMaxListedHosts);
}

TEST(TaskCounts, WhatTheyCannotBeIsNamed) {
  const std::vector<ErrorCase> cases = {
      {"", "a number is missing"},
      {"x", "a number is missing"},
      {"4,", "a number is missing"},
      {"4x3", "expected a comma"},
      {"4(3)", "expected x and a number"},
      {"4(x)", "a number is missing"},
      {"4(x3", "expected )"},
      {"4(x3)2", "expected a comma"},
      {"1(x65537)", "more than 65536"},
      {"1(x65536),1", "more than 65536"},
      {"65537", "more than 65536 tasks"},
      {"-1", "a number is missing"},
  };
  for (const ErrorCase& each : cases) {
    const auto counts = expand_task_counts(each.text);
    ASSERT_FALSE(counts) << each.text;
    EXPECT_THAT(counts.error().message, HasSubstr(each.says)) << each.text;
  }
}

}  // namespace
}  // namespace ddp::config
