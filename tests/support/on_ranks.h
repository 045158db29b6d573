#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/ids.h"

// The ranks of a world as threads of the test.
namespace ddp::test {

// Runs body(rank) on a thread per rank. An exception that escapes fails the test.
inline void on_ranks(int world_size, const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([rank, &body] {
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
