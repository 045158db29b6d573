// Options from the environment, beside the command line.
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

TEST(Flags, EnvironmentFillsInWhatTheLineLacks) {
  const Environment environment{
      {"PET_NNODES", "3"},  {"PET_NPROC_PER_NODE", "gpu"}, {"PET_RDZV_ENDPOINT", "h:99"},
      {"PET_RDZV_ID", "x"}, {"PET_MAX_RESTARTS", "4"},     {"PET_NO_PYTHON", "1"},
      {"PET_MODULE", "0"},  {"PET_JOIN_TIMEOUT", "9"},     {"PYTHON_EXEC", "/opt/python"}};
  const Options options = options_of({"--nnodes=2", "train"}, environment);
  EXPECT_EQ(options.spec.rules.max_nodes, 2);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kAccelerator);
  EXPECT_EQ(options.endpoint->host, "h");
  EXPECT_EQ(options.endpoint->port, 99);
  EXPECT_EQ(options.endpoint_flag, "PET_RDZV_ENDPOINT=h:99");
  EXPECT_EQ(options.job_id, "x");
  EXPECT_EQ(options.spec.rules.max_restarts, 4);
  EXPECT_TRUE(options.no_python);
  EXPECT_FALSE(options.module);
  EXPECT_EQ(options.spec.rules.join_timeout_ms, 9'000);
  EXPECT_EQ(options.python, "/opt/python");
  EXPECT_TRUE(options_of({"a"}, {{"PET_STANDALONE", "1"}}).standalone);
  EXPECT_TRUE(options_of({"a"}, {{"PET_STANDALONE", "2"}}).standalone);
  EXPECT_EQ(
      options_of({"a"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", " 5"}}).spec.rules.stop_timeout_ms,
      5'000);
  EXPECT_EQ(options_of({"--shutdown-timeout", "6", "a"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5"}})
                .spec.rules.stop_timeout_ms,
            6'000);
}

TEST(Flags, TheExitBarriersLimitIsAVariable) {
  EXPECT_EQ(options_of({"a"}, {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "5"}}).spec.exit_barrier_ms,
            5'000);
}

// As _resolve_uninterruptible_state_timeout() of torchrun 2.14.1, which takes what is no number for
// no limit, too.
TEST(Flags, HowLongAWorkerMayBeInStateD) {
  const auto limit = [](const std::string& text) {
    return options_of({"a"}, {{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", text}})
        .spec.uninterruptible_ms;
  };
  EXPECT_EQ(options_of({"a"}).spec.uninterruptible_ms, 0);
  EXPECT_EQ(limit("2.5"), 2'500);
  EXPECT_EQ(limit("0"), 0);
  EXPECT_EQ(limit("-3"), 0);
  EXPECT_EQ(limit(""), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Environment, WrongLine,
    testing::Values(
        Wrong{{"a"},
              64,
              "PET_NNODES=x: not a number of nodes; write N or MIN:MAX, for example 2 or 2:4",
              {{"PET_NNODES", "x"}}},
        Wrong{{"a"}, 64, "PET_STANDALONE=yes: neither 0 nor 1", {{"PET_STANDALONE", "yes"}}},
        Wrong{{"a"},
              64,
              "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x: not a number of seconds from 0; write for example "
              "60 or 0.5",
              {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x"}}},
        Wrong{{"a"},
              64,
              "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=-1: not a number of seconds from 0; write for "
              "example 60 or 0.5",
              {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "-1"}}},
        Wrong{{"a"},
              64,
              "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=soon: not a number of seconds from 0; "
              "write for example 60 or 0.5",
              {{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "soon"}}}));

}  // namespace
}  // namespace ddp::flags
