// Flags for the destination of the workers' output.
#include <filesystem>
#include <fstream>

#include "launcher/plan/log_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CaptureFlags, DefaultsAreNoFilesAndAllOnTheConsole) {
  const Options options = options_of({"a"});
  EXPECT_EQ(options.log_dir, "");
  EXPECT_FALSE(options.log_dir_is_default);
  EXPECT_TRUE(options.spec.output.redirects.none());
  EXPECT_TRUE(options.spec.output.tee.none());
  EXPECT_TRUE(options.spec.output.local_ranks.empty());
  EXPECT_TRUE(options.spec.output.ranks.empty());
  EXPECT_FALSE(options.spec.output.has_prefix);
  EXPECT_TRUE(options.spec.output.status_line);
}

TEST(CaptureFlags, EveryFlagReachesItsOption) {
  const config::OutputSpec output =
      options_of({"-r", "1", "--tee", "0:3,8-15:2", "--local_ranks_filter", "0,2-3",
                  "--ranks-filter", "17", "--duplicate-stdout-filters", "loss,a,,b",
                  "--duplicate_stderr_filters=Error", "--log-line-prefix-template", "${rank}> ",
                  "--no-status-line", "a"})
          .spec.output;
  EXPECT_EQ(output.redirects.of(5, 1), 1);
  EXPECT_EQ(output.tee.of(8, 0), 3);
  EXPECT_EQ(output.tee.of(0, 1), 0);
  EXPECT_EQ(output.tee.of(0, 12), 2);
  EXPECT_TRUE(output.local_ranks.contains(2));
  EXPECT_FALSE(output.local_ranks.contains(1));
  EXPECT_TRUE(output.ranks.contains(17));
  EXPECT_THAT(output.stdout_filters, ElementsAre("loss", "a,b"));
  EXPECT_THAT(output.stderr_filters, ElementsAre("Error"));
  EXPECT_EQ(output.prefix, "${rank}> ");
  EXPECT_FALSE(output.status_line);
}

TEST(CaptureFlags, TheEnvironmentFillsIn) {
  const Environment environment{{"PET_REDIRECTS", "3"},
                                {"PET_TEE", "0:1"},
                                {"PET_LOCAL_RANKS_FILTER", "1"},
                                {"PET_DUPLICATE_STDOUT_FILTERS", "x"}};
  const config::OutputSpec output = options_of({"a"}, environment).spec.output;
  EXPECT_EQ(output.redirects.of(0, 0), 3);
  EXPECT_EQ(output.tee.of(0, 0), 1);
  EXPECT_TRUE(output.local_ranks.contains(1));
  EXPECT_THAT(output.stdout_filters, ElementsAre("x"));
  EXPECT_EQ(options_of({"-r", "0", "a"}, environment).spec.output.redirects.of(0, 0), 0);
  EXPECT_TRUE(
      options_of({"--local-ranks-filter", "", "a"}, environment).spec.output.local_ranks.empty());
}

// Who wins, and what empty means, was seen of torchrun 2.14.1; there "" stands for [default0]:.
TEST(CaptureFlags, ThePrefixComesFromTheFlagOrAVariable) {
  const struct {
    const char* flag;  // Null: not given.
    const char* pet;
    const char* torchelastic;
    std::string prefix;  // Empty: the usual one.
  } cases[] = {
      {"flag ", "pet ", "te ", "flag "}, {nullptr, "pet ", "te ", "pet "},
      {"", "pet ", "te ", "te "},        {nullptr, "", "te ", "te "},
      {nullptr, nullptr, "te ", "te "},  {nullptr, nullptr, "", ""},
      {nullptr, nullptr, nullptr, ""},
  };
  for (const auto& c : cases) {
    Arguments arguments{"a"};
    if (c.flag != nullptr) arguments = {"--log-line-prefix-template", c.flag, "a"};
    Environment environment;
    if (c.pet != nullptr) environment["PET_LOG_LINE_PREFIX_TEMPLATE"] = c.pet;
    if (c.torchelastic != nullptr)
      environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = c.torchelastic;
    const config::OutputSpec output = options_of(arguments, environment).spec.output;
    EXPECT_EQ(output.prefix, c.prefix) << testing::PrintToString(environment);
    EXPECT_EQ(output.has_prefix, !c.prefix.empty()) << testing::PrintToString(environment);
  }
}

TEST(CaptureFlags, ThePrefixMayBeNone) {
  const Options options = options_of({"--no-log-prefix", "a"},
                                     {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${unknown} "}});
  EXPECT_TRUE(options.spec.output.has_prefix);
  EXPECT_EQ(options.spec.output.prefix, "");
  EXPECT_THAT(options.warnings, ElementsAre());
}

// torchrun leaves it as it is and says nothing.
TEST(CaptureFlags, AnUnknownNameInThePrefixIsSaid) {
  const Options options = options_of({"--log-line-prefix-template", "$$x ${rnk}: $hostname", "a"});
  EXPECT_EQ(options.spec.output.prefix, "$$x ${rnk}: $hostname");
  EXPECT_THAT(
      options.warnings,
      ElementsAre("--log-line-prefix-template $$x ${rnk}: $hostname: ${rnk} is not known "
                  "and stays as it is; the known names are ${role_name}, ${rank}, ${local_rank}, "
                  "${hostname}, ${node_rank}, ${time}"));
  EXPECT_THAT(options_of({"a"}, {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${host}] "}}).warnings,
              ElementsAre(HasSubstr("_TEMPLATE=[${host}] : ${host} is not known")));
}

TEST(CaptureFlags, FilesWithoutAFolderGetOne) {
  const struct {
    Arguments flags;
    std::string log_dir;
    bool is_default;
  } cases[] = {
      {{"-r", "3"}, "ddp-run-logs", true},
      {{"-t", "1:2"}, "ddp-run-logs", true},
      {{"--duplicate-stderr-filters", "x"}, "ddp-run-logs", true},
      {{"-t", "3", "--log-dir", "mine"}, "mine", false},
      {{"--log-dir", "mine"}, "mine", false},
      {{"-r", "0", "-t", "0"}, "", false},
      {{"-r", "3", "--log-dir", "/dev/null"}, "", false},
      {{"--log-dir", "/dev/null"}, "", false},
  };
  for (const auto& c : cases) {
    Arguments arguments = c.flags;
    arguments.push_back("a");
    const Options options = options_of(arguments);
    EXPECT_EQ(options.log_dir, c.log_dir) << testing::PrintToString(c.flags);
    EXPECT_EQ(options.log_dir_is_default, c.is_default) << testing::PrintToString(c.flags);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Capture, WrongLine,
    testing::Values(
        Wrong{{"-r", "4", "a"},
              64,
              "--redirects 4: '4' is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"},
        Wrong{{"--tee", "0:1,3", "a"},
              64,
              "--tee 0:1,3: '3' has no value; write for example 0:1,8-15:3, or 3 for all workers"},
        Wrong{{"--tee", "0-x:1", "a"},
              64,
              "--tee 0-x:1: '0-x' is not a rank or a range of ranks; write for example 0,8-15"},
        Wrong{{"a"},
              64,
              "PET_TEE=x: 'x' is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)",
              {{"PET_TEE", "x"}}},
        Wrong{{"--local-ranks-filter", "3-1", "a"},
              64,
              "--local-ranks-filter 3-1: '3-1' is not a rank or a range of ranks; write for "
              "example 0,8-15"},
        Wrong{{"--log-line-prefix-template", "x", "--no-log-prefix", "a"},
              64,
              "--no-log-prefix: contradicts --log-line-prefix-template x; leave one of them out"}));

TEST(LogFolder, LatestLeadsToTheNewestJob) {
  const test::TempDir dir;
  plan::link_latest(dir.path(), "one");
  EXPECT_EQ(std::filesystem::read_symlink(dir.path() / "latest"), "one");
  plan::link_latest(dir.path(), "two");
  EXPECT_EQ(std::filesystem::read_symlink(dir.path() / "latest"), "two");
  plan::link_latest(dir.path(), "latest");
  EXPECT_EQ(std::filesystem::read_symlink(dir.path() / "latest"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(LogFolder, ALatestThatIsNoLinkStays) {
  const test::TempDir dir;
  dir.write("latest", "mine");
  plan::link_latest(dir.path(), "one");
  EXPECT_EQ(dir.read("latest"), "mine");
}

TEST(LogFolder, TheDefaultOneIsNamedWithItsFlag) {
  const test::TempDir dir;
  Options options;
  options.log_dir = dir.write("file", "") + "/logs";
  options.log_dir_is_default = true;
  const auto made = plan::make_log_folder(options);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr(options.log_dir));
  EXPECT_THAT(made.error().message, HasSubstr("name another one with --log-dir"));
}

}  // namespace
}  // namespace ddp::flags
