#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/ids.h"
#include "tests/support/worker_world.h"

// Ranks that are processes of their own, forked from the test, which must have no threads.
namespace ddp::test {

// Forks the ranks, those in `absent` left out, and lets each run the body, which gives its status.
inline std::vector<pid_t> start_ranks(int size, const std::function<int(Rank)>& body,
                                      const std::vector<Rank>& absent = {}) {
  std::vector<pid_t> children;
  for (Rank rank = 0; rank < size; ++rank) {
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
    const pid_t child = ::fork();
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    int status = 99;
    try {
      status = body(rank);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::_exit(status);
  }
  return children;
}

// Against ranks that hang: far beyond what a loaded machine needs, below the limit of ctest (300 s
// in worker's tests). A rank that reaches it is killed, which the others report as its death.
constexpr std::chrono::seconds kHang{200};

inline void expect_all(const std::vector<pid_t>& children, int status = 0) {
  for (const pid_t child : children) EXPECT_EQ(reap(child, kHang), status);
}

}  // namespace ddp::test
