// --hosts and --hostfile.
#include "launcher/hosts/syntax/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace ddp::hosts {

void PrintTo(const Host& host, std::ostream* out) { *out << host.name << ":" << host.slots; }

namespace {

using testing::HasSubstr;
using Hosts = std::vector<Host>;

struct Case {
  const char* text;
  Hosts hosts;        // What it means, or
  const char* error;  // what is said of it.
};

void check(const std::vector<Case>& cases, Result<Hosts> (*parse)(std::string_view)) {
  for (const Case& one : cases) {
    const auto hosts = parse(one.text);
    if (one.error == nullptr) {
      ASSERT_TRUE(hosts) << one.text << ": " << hosts.error().message;
      EXPECT_EQ(*hosts, one.hosts) << one.text;
    } else {
      ASSERT_FALSE(hosts) << one.text;
      EXPECT_THAT(hosts.error().message, HasSubstr(one.error)) << one.text;
    }
  }
}

TEST(HostList, NamesAndSlots) {
  check({{"a", {{"a", 0}}, nullptr},
         {"a,b:4", {{"a", 0}, {"b", 4}}, nullptr},
         {"user@node-1.example.com:16", {{"user@node-1.example.com", 16}}, nullptr},
         {"10.0.0.7:2,10.0.0.8", {{"10.0.0.7", 2}, {"10.0.0.8", 0}}, nullptr},
         {"[fd00::7]:4,[::1]", {{"fd00::7", 4}, {"::1", 0}}, nullptr},
         {"team/pod-0", {{"team/pod-0", 0}}, nullptr},
         {"a:65536", {{"a", 65536}}, nullptr},
         {"", {}, "a host's name is empty"},
         {"a,", {}, "a host's name is empty"},
         {"a,,b", {}, "a host's name is empty"},
         {":4", {}, "a host's name is empty"},
         {"a:0", {}, "'0' is not a number of slots"},
         {"a:65537", {}, "'65537' is not a number of slots"},
         {"a:x", {}, "'x' is not a number of slots"},
         {"a:", {}, "'' is not a number of slots"},
         {"a:4x", {}, "'4x' is not a number of slots"},
         {"fd00::7", {}, "write an IPv6 address in brackets"},
         {"[fd00::7", {}, "lacks its closing bracket"},
         {"[fd00::7]4", {}, "only :SLOTS may follow"},
         {"-oProxyCommand=x", {}, "is not a host name"},
         {"a b", {}, "is not a host name"},
         {"a;reboot", {}, "is not a host name"},
         {"$(x)", {}, "is not a host name"},
         {"a\nb", {}, "is not a host name"},
         {"a,b,a", {}, "host a is named twice"}},
        parse_host_list);
}

TEST(HostList, ANameHasALimit) {
  EXPECT_TRUE(parse_host_list(std::string(255, 'a')));
  EXPECT_FALSE(parse_host_list(std::string(256, 'a')));
}

TEST(Hostfile, LinesCommentsAndSlots) {
  check(
      {{"a\nb:4\nc slots=2\n", {{"a", 0}, {"b", 4}, {"c", 2}}, nullptr},
       {"a", {{"a", 0}}, nullptr},
       {"# all of them\n\n  \ta\t slots=8 # the large one\r\nb\r\n", {{"a", 8}, {"b", 0}}, nullptr},
       {"[fd00::7] slots=4\n", {{"fd00::7", 4}}, nullptr},
       {"", {}, "it names no host"},
       {"# nobody\n", {}, "it names no host"},
       {"a\nb x\n", {}, "line 2: 'x' is not understood"},
       {"a\n\nb slots=\n", {}, "line 3: '' is not a number of slots"},
       {"a slots=2 slots=3\n", {}, "line 1: the slots of a are given twice"},
       {"a:2 slots=3\n", {}, "line 1: the slots of a are given twice"},
       {"a\nb\n#\na slots=2\n", {}, "line 4: host a is named twice"},
       {"-a\n", {}, "line 1: '-a' is not a host name"}},
      parse_hostfile);
}

TEST(Hostfile, IsRead) {
  const test::TempDir folder;
  EXPECT_EQ(read_hostfile(folder.write("hosts", "a slots=3\n")).value(), (Hosts{{"a", 3}}));
  const auto missing = read_hostfile(folder.path() / "no");
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("No such file"));
  EXPECT_FALSE(read_hostfile(folder.path())) << "a folder";
}

TEST(HostList, TwoListsHaveNoHostTwice) {
  EXPECT_EQ(joined({{"a", 1}}, {{"b", 2}}).value(), (Hosts{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(joined({{"a", 1}}, {{"b", 2}, {"a", 1}}).error().code, Errc::kExists);
}

}  // namespace
}  // namespace ddp::hosts
