#include "agent/core/missing_hosts.h"

#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

wire::Waiting waiting(std::vector<std::string> hosts, int have = -1) {
  wire::Waiting message;
  message.have = have < 0 ? static_cast<int>(hosts.size()) : have;
  message.hosts = std::move(hosts);
  return message;
}

TEST(MissingHosts, AreThoseThatAreNotIn) {
  EXPECT_EQ(missing_hosts({"n1", "n2", "n3"}, waiting({"n2"})), "; missing: n1, n3");
  EXPECT_EQ(missing_hosts({"n1", "n2"}, waiting({"n1.cluster.example"})), "; missing: n2");
  EXPECT_EQ(missing_hosts({"10.0.0.1", "10.0.0.2"}, waiting({"10.0.0.2"})), "; missing: 10.0.0.1");
  // Two nodes on one machine.
  EXPECT_EQ(missing_hosts({"a", "a"}, waiting({"a"})), "; missing: a");
}

TEST(MissingHosts, AreNotGuessed) {
  EXPECT_EQ(missing_hosts({}, waiting({})), "");
  EXPECT_EQ(missing_hosts({"n1"}, waiting({"n1"})), "");
  EXPECT_EQ(missing_hosts({"alias", "n2"}, waiting({"n1"})), "");
  EXPECT_EQ(missing_hosts({"n1", "n2"}, waiting({"n1"}, 70)), "");
}

TEST(MissingHosts, AreBounded) {
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) expected.push_back("n" + std::to_string(i));
  const std::string text = missing_hosts(expected, waiting({}));
  EXPECT_TRUE(text.ends_with("n15 and 24 more")) << text;
}

}  // namespace
}  // namespace ddp::agent
