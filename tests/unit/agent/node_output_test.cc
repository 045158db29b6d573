#include "agent/process/node_output.h"

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/event_loop.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

// The second node of two, with ranks 3 to 6.
wire::RoundStart round_of(int world_size = 7) {
  wire::RoundStart round;
  round.round = 2;
  round.world_size = world_size;
  round.group_rank = world_size > 1 ? 1 : 0;
  round.members = {{"x", "other", "127.0.0.1", 3, 0}, {"y", "here", "127.0.0.1", 4, 3}};
  if (world_size == 1) round.members = {{"y", "here", "127.0.0.1", 1, 0}};
  return round;
}

class NodeOutputTest : public testing::Test {
 protected:
  NodeOutputTest() {
    spec_.job_id = "job";
    spec_.host = "here";
    spec_.single_node_prefix = false;
  }

  NodeOutput& output() {
    if (!output_) {
      const auto console = Console::open(io_, -1);
      output_ = std::make_unique<NodeOutput>(io_, spec_, Console::Pair{console, console});
    }
    return *output_;
  }
  std::string prefix(const OutputCapture::Route& route) {
    std::string text;
    route.prefix.append_to(text, {});
    return text;
  }

  asio::io_context io_;
  config::JobSpec spec_;
  std::unique_ptr<NodeOutput> output_;
};

TEST_F(NodeOutputTest, LinesHaveHostAndRank) {
  const auto route = output().route(round_of(), 1, config::kStdout);
  EXPECT_TRUE(route.whole_lines);
  EXPECT_EQ(prefix(route), "[here:4] ");
  EXPECT_EQ(prefix(output().standby_route(config::kStdout)), "[here:standby] ");
}

TEST_F(NodeOutputTest, ASingleWorkerHasNoPrefixUnlessOneIsAskedFor) {
  EXPECT_FALSE(output().route(round_of(1), 0, config::kStdout).whole_lines);
  output_.reset();
  spec_.output.has_prefix = true;
  spec_.output.prefix = "<${role_name} ${node_rank} ${local_rank}> ";
  const auto route = output().route(round_of(1), 0, config::kStdout);
  EXPECT_TRUE(route.whole_lines);
  EXPECT_EQ(prefix(route), "<default 0 0> ");
}

TEST_F(NodeOutputTest, NoPrefixOnRequest) {
  spec_.output.has_prefix = true;
  const auto route = output().route(round_of(), 0, config::kStdout);
  EXPECT_TRUE(route.whole_lines);
  EXPECT_EQ(prefix(route), "");
}

TEST_F(NodeOutputTest, StreamsFollowTheGlobalRank) {
  const test::TempDir dir;
  spec_.log_dir = dir.path();
  spec_.output.redirects = *config::parse_stream_map("@4:1");
  spec_.output.tee = *config::parse_stream_map("@5:2");
  EXPECT_FALSE(output().route(round_of(), 1, config::kStdout).to_console);
  EXPECT_TRUE(output().route(round_of(), 1, config::kStderr).to_console);
  EXPECT_TRUE(output().route(round_of(), 0, config::kStdout).to_console);
  EXPECT_EQ(output().files(round_of(), 0), 0);
  EXPECT_EQ(output().files(round_of(), 1), config::kStdout);
  EXPECT_EQ(output().files(round_of(), 2), config::kStderr);
  EXPECT_EQ(output().standby_files(), config::kBothStreams);
}

TEST_F(NodeOutputTest, FilteredLinesOfANodeHaveAFileInEachRound) {
  const test::TempDir dir;
  spec_.log_dir = dir.path();
  spec_.output.stdout_filters = {"loss"};
  output().begin_round(round_of());
  const auto route = output().route(round_of(), 0, config::kStdout);
  ASSERT_TRUE(route.filtered);
  EXPECT_FALSE(output().route(round_of(), 0, config::kStderr).filtered);
  route.filtered->add(route.prefix, "loss 1");
  EXPECT_TRUE(test::run_until(io_, [this] { return output().writer().empty(); }));
  EXPECT_EQ(dir.read("job/round_2/node_1/filtered_stdout.log"), "[here:3] loss 1\n");
}

}  // namespace
}  // namespace ddp::agent
