#pragma once

#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/ids.h"

// The ranks of a world as threads of the test.
namespace ddp::test {

// Runs body(rank) on a thread per rank. All begin when the last thread runs: a loaded machine
// starts threads at very different times. An exception that escapes fails the test.
inline void on_ranks(int world_size, const std::function<void(Rank)>& body) {
  std::latch all_run(world_size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([rank, &body, &all_run] {
      all_run.arrive_and_wait();
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ddp::test
