#pragma once

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "worker/ddp/state/checkpointer.h"

namespace ddp::test {

// Tests of checkpoints in a folder of their own, with a process group of one rank.
class CheckpointTest : public ::testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "ckpt").string(); }
  CheckpointOptions options() const {
    CheckpointOptions chosen;
    chosen.directory = path();
    return chosen;
  }

  TempDir folder_;
  std::shared_ptr<ProcessGroup> group_ = ProcessGroup::from_environment();
};

}  // namespace ddp::test
