#include "common/wire/error_file.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/write_error_file.h"

namespace ddp::runtime {
namespace {

TEST(WorkersErrorFile, IsWhereTheLauncherLooksForIt) {
  const test::TempDir dir;
  const std::string path = dir.path() / "error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  write_error_file("first");
  EXPECT_EQ(wire::decode_error_file(dir.read("error.json")).message, "first");
  // Also where the launcher is not ddp-run.
  ControlChannel::from_environment({})->error("rank 1 is gone", true);
  EXPECT_EQ(wire::decode_error_file(dir.read("error.json")).message, "rank 1 is gone");
  EXPECT_TRUE(wire::decode_error_file(dir.read("error.json")).secondary);
  ::setenv("TORCHELASTIC_ERROR_FILE", "/no/such/folder/error.json", 1);
  write_error_file("nobody reads this");
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  write_error_file("nor this");
  EXPECT_EQ(wire::decode_error_file(dir.read("error.json")).message, "rank 1 is gone");
}

}  // namespace
}  // namespace ddp::runtime
