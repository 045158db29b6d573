// Where the rendezvous is: endpoints, etcd, --rdzv-conf.
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Flags, EtcdsEndpointsAndKeys) {
  const Options options = options_of(
      {"--rdzv-backend", "etcd", "--rdzv-endpoint", "e0,10.0.0.1:99,[fd00::1]", "--rdzv-id", "j",
       "--rdzv-conf", "protocol=https,cacert=a,cert=b,key=c,etcd_prefix=/p,join_timeout=5", "a"});
  ASSERT_TRUE(options.etcd);
  EXPECT_THAT(etcd_urls(*options.etcd),
              ElementsAre("https://e0:2379", "https://10.0.0.1:99", "https://[fd00::1]:2379"));
  EXPECT_EQ(options.etcd->tls.ca, "a");
  EXPECT_EQ(options.etcd->tls.certificate, "b");
  EXPECT_EQ(options.etcd->tls.key, "c");
  EXPECT_EQ(options.etcd->prefix, "/p");
  EXPECT_EQ(options.spec.rules.join_timeout_ms, 5'000);
  EXPECT_TRUE(options.warnings.empty());

  const Options older = options_of({"--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "e",
                                    "--rdzv-id", "j", "--rdzv-conf", "is_host=1", "a"});
  EXPECT_TRUE(older.etcd);
  EXPECT_THAT(older.warnings, ElementsAre(HasSubstr("version 3"), HasSubstr("is_host")));
  // --standalone overrides whatever names a rendezvous.
  EXPECT_FALSE(options_of({"--standalone", "--rdzv-backend", "etcd", "a"}).etcd);
}

TEST(Flags, Endpoints) {
  struct Case {
    Arguments flags;
    std::string host;
    int port;
  };
  for (const Case& c : std::vector<Case>{
           {{"--rdzv-endpoint", "node0"}, "node0", 29400},
           {{"--rdzv-endpoint", "node0:0"}, "node0", 0},
           {{"--rdzv-endpoint", "10.1.2.3:5"}, "10.1.2.3", 5},
           {{"--rdzv-endpoint", "[fd00::1]:5"}, "fd00::1", 5},
           {{"--rdzv-endpoint", "[fd00::1]"}, "fd00::1", 29400},
           {{"--rdzv-endpoint", "::1"}, "::1", 29400},
           {{"--master-addr", "m"}, "m", 29500},
           {{"--master-addr", "m", "--master-port", "7"}, "m", 7},
           {{"--master-addr", "fd00::1", "--master-port", "7"}, "fd00::1", 7},
           {{"--master-port", "7"}, "127.0.0.1", 7},
           {{"--rdzv-endpoint", "e:1", "--master-addr", "m", "--master-port", "7"}, "e", 1},
           {{"--rdzv-backend", "static", "--master-addr", "m"}, "m", 29500},
           {{"--rdzv-endpoint", "  node0:7\t"}, "node0", 7},
           {{"--rdzv-endpoint", " [fd00::1]:7 "}, "fd00::1", 7},
           {{"--master-addr", " m "}, "m", 29500},
           {{"--rdzv-endpoint", "node_1.some-where.org.:7"}, "node_1.some-where.org.", 7},
           {{"--rdzv-endpoint", "127.1"}, "127.1", 29400},
           {{"--rdzv-endpoint", std::string(63, 'x') + ".org"},
            std::string(63, 'x') + ".org",
            29400},
       }) {
    Arguments arguments = c.flags;
    arguments.push_back("a");
    const Options options = options_of(arguments);
    ASSERT_TRUE(options.endpoint) << testing::PrintToString(c.flags);
    EXPECT_EQ(options.endpoint->host, c.host) << testing::PrintToString(c.flags);
    EXPECT_EQ(options.endpoint->port, c.port) << testing::PrintToString(c.flags);
  }
  EXPECT_FALSE(options_of({"--standalone", "--rdzv-endpoint", "node0", "a"}).endpoint);
}

TEST(Flags, RendezvousConf) {
  const Options options = options_of(
      {"--rdzv-conf", "join_timeout=1,last_call_timeout=0,timeout=900,is_host=true", "a"});
  EXPECT_EQ(options.spec.rules.join_timeout_ms, 1'000);
  EXPECT_EQ(options.spec.rules.last_call_ms, 0);
  EXPECT_EQ(options.is_host, true);
  EXPECT_EQ(options_of({"--rdzv-conf", "timeout=2", "a"}).spec.rules.join_timeout_ms, 2'000);
  EXPECT_EQ(options_of({"--rdzv-conf", "join_timeout=2", "--join-timeout", "3", "a"})
                .spec.rules.join_timeout_ms,
            3'000);
  // The later of two replaces the earlier, as a whole.
  EXPECT_EQ(options_of({"--rdzv-conf", "join_timeout=2", "--rdzv-conf", "is_host=0", "a"})
                .spec.rules.join_timeout_ms,
            600'000);
  EXPECT_EQ(options_of({"--rdzv-conf", "is_host=0", "a"}).is_host, false);
  const Options unknown = options_of({"--rdzv-conf", "read_timeout=5,join_timeout=4", "a"});
  EXPECT_EQ(unknown.spec.rules.join_timeout_ms, 4'000);
  ASSERT_EQ(unknown.warnings.size(), 1U);
  EXPECT_THAT(unknown.warnings[0], HasSubstr("the key read_timeout has no effect"));
}

// torchrun's rendezvous counts a node as lost that has not said for so many intervals that it
// lives.
TEST(Flags, KeepAlivesOfRendezvousConfAreTheLease) {
  const auto lease_of = [](const Arguments& more) {
    Arguments arguments{"--rdzv-conf"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("a");
    return options_of(arguments).spec.rules.lease_ms;
  };
  EXPECT_EQ(lease_of({"keep_alive_interval=2,keep_alive_max_attempt=4"}), 8'000);
  EXPECT_EQ(lease_of({"keep_alive_interval=2"}), 6'000);
  EXPECT_EQ(lease_of({"keep_alive_max_attempt=2"}), 10'000);
  EXPECT_EQ(lease_of({"keep_alive_interval=2", "--lease", "1.5"}), 1'500);
  EXPECT_EQ(lease_of({"timeout=2"}), 5'000);
}

// As torchrun 2.14.1 reads it (rendezvous/utils.py); what it refuses is in WrongLine.
TEST(Flags, BlanksAroundKeysAndValuesOfRendezvousConf) {
  const Options options =
      options_of({"--rdzv-conf", "  join_timeout = 1 ,\tlast_call_timeout=2,is_host= FALSE ", "a"});
  EXPECT_EQ(options.spec.rules.join_timeout_ms, 1'000);
  EXPECT_EQ(options.spec.rules.last_call_ms, 2'000);
  EXPECT_EQ(options.is_host, false);
  EXPECT_EQ(options_of({"--rdzv-conf", "is_host=y", "a"}).is_host, true);
  EXPECT_EQ(options_of({"--rdzv-conf", "   ", "a"}), options_of({"a"}));
  // What follows the first = is the value, and the last value of a key counts.
  const Options more = options_of({"--rdzv-conf", "x=a=b,timeout=3,timeout=4", "a"});
  EXPECT_THAT(more.warnings, ElementsAre(HasSubstr("the key x has no effect")));
  EXPECT_EQ(more.spec.rules.join_timeout_ms, 4'000);
}

// torchrun looks at it with its static backend only.
TEST(Flags, ANodeRankCountsAsMuchAsTheBackendLetsIt) {
  struct Case {
    Arguments flags;
    int rank;
    bool is_wish;
    bool is_warned;
  };
  for (const Case& c : std::vector<Case>{
           {{"--node-rank", "1"}, 1, false, false},
           {{"--rdzv-backend", "static", "--node-rank", "1"}, 1, false, false},
           {{"--rdzv-backend", "c10d", "--node-rank", "1"}, 1, true, false},
           {{"--rdzv-backend", "c10d", "--node-rank", "-1"}, -1, false, false},
           {{"--rdzv-backend", "c10d", "--node-rank", "7"}, -1, false, true},
           {{"--rdzv-backend", "c10d", "--rdzv-conf", "rank=7"}, -1, false, true},
           {{"--rdzv-backend", "c10d", "--rdzv-conf", "rank=1"}, 1, true, false},
           {{"--rdzv-backend", "etcd", "--rdzv-id", "j", "--node-rank", "1"}, 1, true, false}}) {
    Arguments arguments{"--nnodes", "2", "--rdzv-endpoint", "h"};
    arguments.insert(arguments.end(), c.flags.begin(), c.flags.end());
    arguments.push_back("a");
    const Options options = options_of(arguments);
    EXPECT_EQ(options.spec.node_rank, c.rank) << testing::PrintToString(c.flags);
    EXPECT_EQ(options.spec.node_rank_is_wish, c.is_wish) << testing::PrintToString(c.flags);
    ASSERT_EQ(options.warnings.size(), c.is_warned ? 1U : 0U) << testing::PrintToString(c.flags);
  }
  const Options outside = options_of({"--rdzv-backend", "c10d", "--node-rank", "3", "a"});
  EXPECT_THAT(outside.warnings, ElementsAre("--node-rank 3: ranks of 1 nodes go from 0 to 0; "
                                            "--rdzv-backend c10d chooses a rank for this node"));
  const Options alone = options_of({"--standalone", "a"}, {{"PET_NODE_RANK", "1"}});
  EXPECT_EQ(alone, options_of({"--standalone", "a"}));
}

TEST(Flags, TheMasterIsNodeZerosUnlessTheBackendGivesRanks) {
  EXPECT_TRUE(options_of({"--master-addr", "m", "a"}).endpoint_is_master);
  EXPECT_TRUE(
      options_of({"--rdzv-backend", "static", "--master-addr", "m", "a"}).endpoint_is_master);
  EXPECT_FALSE(
      options_of({"--rdzv-backend", "c10d", "--master-addr", "m", "a"}).endpoint_is_master);
  EXPECT_FALSE(options_of({"--rdzv-endpoint", "m", "a"}).endpoint_is_master);
  for (const Arguments& rank : {Arguments{"--node-rank", "0"}, {"--rdzv-conf", "rank=0"}}) {
    Arguments all{"--rdzv-endpoint", "m"};
    all.insert(all.end(), rank.begin(), rank.end());
    all.emplace_back("a");
    EXPECT_TRUE(options_of(all).endpoint_is_master) << rank.front();
    all.insert(all.begin(), {"--rdzv-backend", "c10d"});
    EXPECT_FALSE(options_of(all).endpoint_is_master) << rank.front();
  }
}

const char* const kEndpointForm =
    "; write HOST or HOST:PORT, for example node0:29400 or [fd00::1]:29400";

Wrong wrong_host(const std::string& host, const std::string& why) {
  return Wrong{{"--rdzv-endpoint", host + ":7", "a"},
               64,
               fmt::format("--rdzv-endpoint {}:7: '{}' is not a host name: {}{}", host, host, why,
                           kEndpointForm)};
}

INSTANTIATE_TEST_SUITE_P(
    HostNames, WrongLine,
    testing::Values(
        wrong_host("a..b", "one of its labels is empty"),
        wrong_host(".a", "one of its labels is empty"),
        wrong_host(".", "one of its labels is empty"),
        wrong_host("a b", "'a b' has other characters than letters, digits, '-' and '_'"),
        wrong_host("node0.~x", "'~x' has other characters than letters, digits, '-' and '_'"),
        wrong_host("n\u00f6de",
                   "'n\u00f6de' has other characters than letters, digits, '-' and '_'"),
        wrong_host("-node0", "'-node0' begins or ends with '-'"),
        wrong_host("10.0.0.256", "it is not an IPv4 address"),
        wrong_host(std::string(64, 'x'),
                   "'" + std::string(64, 'x') + "' is longer than 63 characters"),
        wrong_host(std::string(120, 'x') + "." + std::string(133, 'y'),
                   "it is longer than 253 characters"),
        Wrong{{"--master-addr", "a..b", "a"},
              64,
              "--master-addr a..b: 'a..b' is not a host name: one of its labels is empty; write a "
              "host name or address, for example node0 or fd00::1"}));

INSTANTIATE_TEST_SUITE_P(
    RendezvousConf, WrongLine,
    testing::Values(
        Wrong{{"--rdzv-conf", "join_timeout=", "a"},
              64,
              "--rdzv-conf join_timeout=: 'join_timeout' has no value; write for example "
              "join_timeout=60,is_host=true"},
        Wrong{{"--rdzv-conf", " x = , is_host=1", "a"},
              64,
              "--rdzv-conf  x = , is_host=1: 'x' has no value; write for example "
              "join_timeout=60,is_host=true"},
        Wrong{{"--rdzv-conf", "keep_alive_interval=0", "a"},
              64,
              "--rdzv-conf keep_alive_interval=0: keep_alive_interval=0 is not a whole number from "
              "1 to 1000000"},
        Wrong{{"--rdzv-conf", "keep_alive_interval=4000", "a"},
              64,
              "--rdzv-conf keep_alive_interval=4000: keep_alive_interval times "
              "keep_alive_max_attempt is not from 0.5 to 3600 seconds; write for example 5 or 1.5"},
        Wrong{{"--rdzv-conf", "is_host=1,", "a"},
              64,
              "--rdzv-conf is_host=1,: '' is not KEY=VALUE; write for example "
              "join_timeout=60,is_host=true"},
        Wrong{{"--rdzv-conf", " =1", "a"},
              64,
              "--rdzv-conf  =1: '=1' is not KEY=VALUE; write for example "
              "join_timeout=60,is_host=true"},
        Wrong{
            {"--rdzv-conf", "join_timeout='60'", "a"},
            64,
            "--rdzv-conf join_timeout='60': join_timeout='60' is not a number of seconds above 0; "
            "write for example 60 or 0.5"}));

INSTANTIATE_TEST_SUITE_P(
    Endpoints, WrongLine,
    testing::Values(
        Wrong{{"--nnodes", "2", "a"},
              64,
              "--nnodes 2: --rdzv-endpoint is missing; all nodes name the same one, for example "
              "--rdzv-endpoint "
              "node0:29400"},
        Wrong{{"--nnodes", "2", "--master-port", "29500", "a"},
              64,
              "--nnodes 2: --rdzv-endpoint is missing; all nodes name the same one, for example "
              "--rdzv-endpoint "
              "node0:29400"},
        Wrong{{"--nnodes", "2", "--rdzv-endpoint", "h:0", "a"},
              64,
              "--rdzv-endpoint h:0: port 0 cannot be found by other nodes; write a port, for "
              "example h:29400"},
        Wrong{{"--nnodes", "2", "--rdzv-endpoint", "h", "--node-rank", "2", "a"},
              64,
              "--node-rank 2: ranks of 2 nodes go from 0 to 1"},
        Wrong{{"--rdzv-endpoint", ":29400", "a"},
              64,
              std::string("--rdzv-endpoint :29400: the host is missing") + kEndpointForm},
        Wrong{{"--rdzv-endpoint", "h:70000", "a"},
              64,
              std::string("--rdzv-endpoint h:70000: the port is not a number from 0 to 65535") +
                  kEndpointForm},
        Wrong{{"--rdzv-endpoint", "h:", "a"},
              64,
              std::string("--rdzv-endpoint h:: the port is not a number from 0 to 65535") +
                  kEndpointForm},
        Wrong{{"--rdzv-endpoint", "[::1", "a"},
              64,
              std::string("--rdzv-endpoint [::1: the bracket is not closed") + kEndpointForm},
        Wrong{{"--rdzv-endpoint", "[h]:1", "a"},
              64,
              std::string("--rdzv-endpoint [h]:1: 'h' is not an IPv6 address") + kEndpointForm},
        Wrong{{"--rdzv-endpoint", "tcp://h:1", "a"},
              64,
              std::string("--rdzv-endpoint tcp://h:1: the port is not a number from 0 to 65535") +
                  kEndpointForm},
        Wrong{
            {"--rdzv-endpoint", "h/x", "a"},
            64,
            std::string("--rdzv-endpoint h/x: 'h/x' is not a host name: 'h/x' has other characters "
                        "than letters, digits, '-' and '_'") +
                kEndpointForm},
        Wrong{
            {"--rdzv-backend", "zeus", "a"},
            64,
            "--rdzv-backend zeus: the backends are c10d and static, which both mean ddp-run's own "
            "rendezvous, and etcd"},
        Wrong{
            {"--rdzv-backend", "etcd", "--rdzv-id", "j", "a"},
            64,
            "--rdzv-backend etcd: --rdzv-endpoint is missing; name the cluster's client ports, for "
            "example --rdzv-endpoint etcd0:2379,etcd1:2379"},
        Wrong{{"--rdzv-backend", "etcd", "--rdzv-endpoint", "e", "a"},
              64,
              "--rdzv-backend etcd: --rdzv-id is missing; it tells apart the jobs that share a "
              "cluster, for example --rdzv-id mnist-7"},
        Wrong{{"--rdzv-backend", "etcd", "--rdzv-endpoint", "e,f:0", "--rdzv-id", "j", "a"},
              64,
              "--rdzv-endpoint e,f:0: 'f:0' has port 0; etcd's client port is usually 2379"},
        Wrong{{"--rdzv-backend", "etcd", "--rdzv-endpoint", "e", "--rdzv-id", "j", "--rdzv-conf",
               "protocol=ftp", "a"},
              64,
              "--rdzv-conf protocol=ftp: protocol=ftp is neither http nor https"},
        Wrong{{"--rdzv-id", "a/b", "a"},
              64,
              "--rdzv-id a/b: a job's name has 1 to 128 characters and no /"},
        Wrong{{"--rdzv-conf", "join_timeout", "a"},
              64,
              "--rdzv-conf join_timeout: 'join_timeout' is not KEY=VALUE; write for example "
              "join_timeout=60,is_host=true"},
        Wrong{{"--rdzv-conf", "is_host=maybe", "a"},
              64,
              "--rdzv-conf is_host=maybe: is_host=maybe is neither true nor false"},
        Wrong{{"--rdzv-conf", "join_timeout=0", "a"},
              64,
              "--rdzv-conf join_timeout=0: join_timeout=0 is not a number of seconds above 0; "
              "write for example 60 "
              "or 0.5"},
        Wrong{{"--master-addr", "h:1", "a"},
              64,
              "--master-addr h:1: not a host name or address; the port goes into --master-port"},
        Wrong{{"--master-port", "99999", "a"},
              64,
              "--master-port 99999: not a whole number from 0 to 65535"}));

// torchrun 2.14.1 (c10d_rendezvous_backend.py): the type is stripped and lowered, and only the
// backend c10d has store types.
TEST(Flags, NodesMeetThroughAFile) {
  for (const char* conf : {"store_type=file", "store_type=FILE", "timeout=5,store_type=file"}) {
    const Options options = options_of({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-conf",
                                        conf, "--rdzv-endpoint", "/shared/a file:7", "a"});
    EXPECT_EQ(options.meeting_file, "/shared/a file:7") << conf;
    EXPECT_FALSE(options.endpoint);
    EXPECT_TRUE(options.warnings.empty());
  }
  EXPECT_EQ(options_of({"--rdzv-backend", "c10d", "--rdzv-conf", "store_type=tcp",
                        "--rdzv-endpoint", "node0", "a"})
                .meeting_file,
            "");
  // One node needs none.
  EXPECT_EQ(
      options_of({"--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "a"}).meeting_file,
      "");
}

}  // namespace
}  // namespace ddp::flags
