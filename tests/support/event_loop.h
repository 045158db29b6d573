#pragma once

#include <chrono>

#include <asio/io_context.hpp>

namespace ddp::test {

// Runs the loop until the condition holds. False if it does not hold after `limit`.
template <typename Condition>
bool run_until(asio::io_context& io, Condition&& condition,
               std::chrono::milliseconds limit = std::chrono::minutes(2)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    io.restart();
    io.run_one_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ddp::test
