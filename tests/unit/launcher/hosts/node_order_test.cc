// Messages between launchers and launched nodes, and the tree of a launch.
#include "launcher/hosts/node_order.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/host_name.h"
#include "launcher/hosts/launcher.h"

namespace ddp::hosts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(NodeOrder, AnyBytesArriveAsTheyWere) {
  NodeOrder order;
  order.mark = make_mark();
  order.program = "/opt/ddp-run";
  order.folder = "/tmp/\xFFnot text\n";
  order.launch_agent = "kubectl exec -i {host} --";
  order.environment = {{"A", "x=y\xFE"}, {"B", ""}};
  order.arguments = {"--", "sh", "-c", "echo 'a\n\xC3'", "", std::string("\x01", 1)};
  order.start_limit_ms = 7;
  order.checkpoint_signal = 12;
  order.joins_ours = false;
  order.places = {{"a", 4, 0}, {"b", 0, -1}};
  const auto read = decode_order(encode(order));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->mark, order.mark);
  EXPECT_EQ(read->program, order.program);
  EXPECT_EQ(read->folder, order.folder);
  EXPECT_EQ(read->launch_agent, order.launch_agent);
  EXPECT_EQ(read->environment, order.environment);
  EXPECT_EQ(read->arguments, order.arguments);
  EXPECT_EQ(read->start_limit_ms, 7);
  EXPECT_EQ(read->checkpoint_signal, 12);
  EXPECT_FALSE(read->joins_ours);
  EXPECT_EQ(read->places, order.places);
}

TEST(NodeOrder, OtherBytesAreRefused) {
  NodeOrder order;
  order.mark = "m";
  order.program = "p";
  order.places = {{"a", 0, 0}};
  const std::string good = encode(order);
  ASSERT_TRUE(decode_order(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_order(good.substr(0, size))) << size;
  }
  constexpr unsigned kSeed = 7;
  std::mt19937 dice(kSeed);
  for (int i = 0; i < 10'000; ++i) {
    std::string bad = good;
    bad[dice() % bad.size()] = static_cast<char>(dice());
    static_cast<void>(decode_order(bad));  // Whatever it says, it says it by its result.
  }
  order.places.clear();
  EXPECT_FALSE(decode_order(encode(order)));
}

TEST(NodeOrder, Signals) {
  EXPECT_EQ(decode_signal(encode_signal(15)).value(), 15);
  for (const char* text : {"", "0", "-1", "65", "15 ", "x"})
    EXPECT_FALSE(decode_signal(text)) << text;
}

TEST(NodeReport, IsOneLineWithAMarkThatOutputCannotHave) {
  const std::string mark = make_mark();
  EXPECT_NE(mark, make_mark());
  NodeReport report;
  report.kind = NodeReport::Kind::kEnded;
  report.host = "b";
  report.exit_code = 3;
  report.summary = "two\nlines \xFF";
  report.report = "the\nwhole\n";
  report.error = "{}";
  const std::string line = encode_line(mark, report);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(line.starts_with(mark));
  const auto read = decode_line(mark, line + "\n");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->kind, NodeReport::Kind::kEnded);
  EXPECT_EQ(read->host, "b");
  EXPECT_EQ(read->exit_code, 3);
  EXPECT_EQ(read->summary, "two\nlines \xEF\xBF\xBD");
  EXPECT_EQ(read->report, "the\nwhole\n");
  EXPECT_FALSE(decode_line(mark, mark + "{\"kind\":"));
}

std::vector<NodePlace> hosts(int count) {
  std::vector<NodePlace> made;
  for (int i = 0; i < count; ++i) made.push_back({"h" + std::to_string(i), 0, i});
  return made;
}

// How many levels of processes start these, each at most `fan_out` wide.
int depth(const std::vector<NodePlace>& places, std::size_t fan_out, std::vector<NodePlace>& seen) {
  const auto groups = split_for_launch(places, fan_out);
  EXPECT_LE(groups.size(), fan_out);
  int deepest = 0;
  for (const auto& group : groups) {
    EXPECT_FALSE(group.empty());
    seen.push_back(group.front());
    const std::vector<NodePlace> rest(group.begin() + 1, group.end());
    deepest = std::max(deepest, rest.empty() ? 1 : 1 + depth(rest, fan_out, seen));
  }
  return deepest;
}

TEST(LaunchTree, EveryHostIsStartedOnce) {
  for (const int count : {1, 2, 31, 32, 33, 40, 64, 65, 1'000, 1'056, 1'057, 5'000}) {
    std::vector<NodePlace> seen;
    const int levels = depth(hosts(count), kFanOut, seen);
    std::sort(seen.begin(), seen.end(),
              [](const NodePlace& a, const NodePlace& b) { return a.node_rank < b.node_rank; });
    EXPECT_EQ(seen, hosts(count));
    EXPECT_EQ(levels, count <= 32 ? 1 : count <= 1'056 ? 2 : 3) << count;
  }
}

TEST(LaunchTree, SharesAreEven) {
  for (const auto& group : split_for_launch(hosts(70), 32)) {
    EXPECT_TRUE(group.size() == 2 || group.size() == 3) << group.size();
  }
  EXPECT_TRUE(split_for_launch({}).empty());
}

TEST(LaunchCommands, ShowWhatRunsWhere) {
  EXPECT_THAT(launch_commands({{"localhost", 0, 0}, {"a", 2, 1}}, LaunchAgent(), "/opt/ddp-run"),
              ElementsAre("/opt/ddp-run --started-by-ddp-run",
                          testing::AllOf(testing::StartsWith("ssh "),
                                         HasSubstr(" a '/opt/ddp-run --started-by-ddp-run'"))));
}

TEST(LaunchCommands, ThisMachineIsKnownWithAndWithoutItsDomain) {
  const std::string own = host_name();
  const std::string name = own.substr(0, own.find('.'));
  const std::string other = own == name ? name + ".cluster" : name;
  EXPECT_THAT(launch_commands({{other, 0, 0}}, LaunchAgent(), "/opt/ddp-run"),
              ElementsAre("/opt/ddp-run --started-by-ddp-run"));
}

}  // namespace
}  // namespace ddp::hosts
