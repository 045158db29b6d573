#pragma once

#include <functional>

#include <gtest/gtest.h>

#include "worker/runtime/process_group.h"

namespace ddp::test {

// The failure of body(); a test failure if it does not throw one.
inline CollectiveError failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CollectiveError& error) {
    return error;
  }
  ADD_FAILURE() << "no CollectiveError";
  return {"none", {}, -1};
}

}  // namespace ddp::test
