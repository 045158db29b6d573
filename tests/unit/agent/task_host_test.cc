#include "agent/process/task_host.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

using testing::ElementsAre;

TEST(CpuShares, AreThoseOfTheMaskWhereEachHasItsOwn) {
  EXPECT_THAT(cpu_shares({{0, 1}, {2, 3}, {4}}), ElementsAre(2, 2, 1));
}

TEST(CpuShares, WhatSeveralMayUseIsDivided) {
  EXPECT_THAT(cpu_shares({{0, 1, 2, 3}, {0, 1, 2, 3}}), ElementsAre(2, 2));
  EXPECT_THAT(cpu_shares({{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}),
              ElementsAre(2, 2, 2));
  EXPECT_THAT(cpu_shares({{0, 1, 2, 3}, {2, 3}}), ElementsAre(3, 1));
}

TEST(CpuShares, EverybodyHasOne) {
  EXPECT_THAT(cpu_shares({{0}, {0}, {}}), ElementsAre(1, 1, 1));
  EXPECT_THAT(cpu_shares({}), ElementsAre());
}

}  // namespace
}  // namespace ddp::agent
