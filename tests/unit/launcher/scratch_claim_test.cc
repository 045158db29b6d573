#include "launcher/node/scratch_claim.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "common/config/scratch_folder.h"
#include "tests/support/temp_dir.h"

namespace ddp::node {
namespace {

namespace fs = std::filesystem;

class ScratchClaim : public testing::Test {
 protected:
  ScratchClaim() { ::setenv("TMPDIR", folder_.path().c_str(), 1); }
  ~ScratchClaim() override { ::unsetenv("TMPDIR"); }

  // A folder with a file.
  fs::path folder(const std::string& name) {
    const fs::path made = fs::path(folder_.path()) / name;
    fs::create_directory(made);
    std::ofstream(made / "1.error.json") << "{}";
    return made;
  }

  test::TempDir folder_;
};

TEST_F(ScratchClaim, FoldersOfKilledNodesAreRemovedAndNoOthers) {
  const UniqueFd living = claim_scratch_folder("1111111111111111");
  ASSERT_TRUE(living);
  const fs::path of_living = folder("ddp-run-1111111111111111");
  const fs::path of_killed = folder("ddp-run-2222222222222222");
  const fs::path logs = folder("ddp-run-logs");
  const fs::path longer = folder("ddp-run-2222222222222222.old");
  const fs::path file = fs::path(folder_.path()) / "ddp-run-3333333333333333";
  std::ofstream(file) << "not ours";
  const UniqueFd own = claim_scratch_folder("4444444444444444");
  EXPECT_TRUE(own);
  EXPECT_TRUE(fs::is_directory(config::scratch_folder("4444444444444444")));
  EXPECT_TRUE(fs::exists(of_living / "1.error.json"));
  EXPECT_FALSE(fs::exists(of_killed));
  EXPECT_TRUE(fs::exists(logs / "1.error.json"));
  EXPECT_TRUE(fs::exists(longer / "1.error.json"));
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(ScratchClaim, EndsWithItsHolder) {
  UniqueFd first = claim_scratch_folder("1111111111111111");
  ASSERT_TRUE(first);
  EXPECT_FALSE(claim_scratch_folder("1111111111111111"));
  first.reset();
  const UniqueFd second = claim_scratch_folder("2222222222222222");
  EXPECT_TRUE(second);
  EXPECT_FALSE(fs::exists(config::scratch_folder("1111111111111111")));
}

// The agent and ddp-run remove the folder when an agent ends, and then another one is made.
TEST_F(ScratchClaim, AFolderThatWasMadeAgainIsClaimedAgain) {
  const UniqueFd before = claim_scratch_folder("1111111111111111");
  config::remove_scratch_folder(config::scratch_folder("1111111111111111"));
  const UniqueFd after = claim_scratch_folder("1111111111111111");
  EXPECT_TRUE(after);
  const UniqueFd other = claim_scratch_folder("2222222222222222");
  EXPECT_TRUE(fs::exists(config::scratch_folder("1111111111111111")));
}

}  // namespace
}  // namespace ddp::node
