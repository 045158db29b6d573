#include "launcher/etcd/etcd_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/etcd_cluster.h"
#include "tests/support/event_loop.h"

namespace ddp::etcd {
namespace {

using test::EtcdCluster;
using testing::HasSubstr;

constexpr Duration kLimit{10'000};

class EtcdClientTest : public testing::Test {
 protected:
  std::unique_ptr<EtcdClient> client(std::vector<std::string> urls) {
    auto made = EtcdClient::create(io_, {.endpoints = std::move(urls), .tls = {}});
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }

  // Runs the loop until the call has called back.
  template <typename T, typename Call>
  Result<T> result(Call call) {
    std::optional<Result<T>> got;
    call([&got](Result<T> answer) { got = std::move(answer); });
    if (!test::run_until(io_, [&] { return got.has_value(); })) {
      return make_error(Errc::kTimeout, "the test saw no answer");
    }
    return std::move(*got);
  }
  Result<TransactionAnswer> transact(EtcdClient& etcd, const Transaction& transaction,
                                     Duration limit = kLimit) {
    return result<TransactionAnswer>(
        [&](auto done) { etcd.transact(transaction, limit, std::move(done)); });
  }

  asio::io_context io_{1};
};

TEST_F(EtcdClientTest, TransactionsLeasesAndWatches) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  const auto etcd = client(cluster.urls());

  const auto lease = result<LeaseId>(
      [&](auto done) { etcd->grant_lease(Duration(30'000), kLimit, std::move(done)); });
  ASSERT_TRUE(lease) << lease.error().message;
  const std::string value("any \0 bytes\xFF", 12);
  const Transaction create{.compare = {{"/k", Compare::What::kCreated, 0}},
                           .put = {{"/k", value, *lease}},
                           .get = {"/k", "/none"}};
  const auto first = transact(*etcd, create);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(first->succeeded);
  ASSERT_TRUE(first->got[0]);
  EXPECT_EQ(first->got[0]->value, value);
  EXPECT_EQ(first->got[0]->lease, *lease);
  EXPECT_EQ(first->got[0]->create_revision, first->revision);
  EXPECT_FALSE(first->got[1]);
  EXPECT_EQ(etcd->local_address(), "127.0.0.1");

  const auto second = transact(*etcd, create);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_FALSE(second->succeeded);
  EXPECT_EQ(second->got[0]->create_revision, first->revision);

  int changes = 0;
  etcd->watch(
      "/k", first->revision + 1, [&] { ++changes; },
      [](const Error& why) { FAIL() << why.message; });
  const auto left =
      result<std::int64_t>([&](auto done) { etcd->keep_alive(*lease, kLimit, std::move(done)); });
  EXPECT_EQ(*left, 30);
  EXPECT_EQ(changes, 0);
  ASSERT_TRUE(
      result<bool>([&](auto done) { etcd->revoke_lease(*lease, kLimit, std::move(done)); }));
  EXPECT_TRUE(test::run_until(io_, [&] { return changes == 1; }));
  EXPECT_FALSE(transact(*etcd, {.compare = {}, .put = {}, .get = {"/k"}})->got[0]);
  EXPECT_EQ(
      *result<std::int64_t>([&](auto done) { etcd->keep_alive(*lease, kLimit, std::move(done)); }),
      0);
  const auto gone =
      result<bool>([&](auto done) { etcd->revoke_lease(*lease, kLimit, std::move(done)); });
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Errc::kNotFound);
}

TEST_F(EtcdClientTest, NobodyThere) {
  const auto etcd = client({"http://127.0.0.1:" + std::to_string(test::free_port()),
                            "http://127.0.0.1:" + std::to_string(test::free_port())});
  const auto answer = transact(*etcd, {.compare = {}, .put = {}, .get = {"/k"}}, Duration(300));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kTimeout);
  EXPECT_THAT(answer.error().message, HasSubstr(etcd->endpoints()));
  EXPECT_THAT(answer.error().message, HasSubstr("Failed to connect to 127.0.0.1"));
  EXPECT_THAT(answer.error().message, HasSubstr("--rdzv-endpoint"));
}

// Takes connections and says nothing.
TEST_F(EtcdClientTest, AnEndpointThatHangsDoesNotHoldUpTheOthers) {
  DDP_NEEDS_ETCD();
  const test::ListeningSocket mute;
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  const auto etcd =
      client({"http://127.0.0.1:" + std::to_string(mute.port()), cluster.urls().front()});
  const auto answer = transact(*etcd, {.compare = {}, .put = {}, .get = {"/k"}});
  EXPECT_TRUE(answer) << answer.error().message;
}

TEST_F(EtcdClientTest, AnotherProgramsPort) {
  const auto etcd = client({"http://127.0.0.1:" + std::to_string(test::ListeningSocket().port())});
  const auto answer = transact(*etcd, {.compare = {}, .put = {}, .get = {"/k"}}, Duration(300));
  ASSERT_FALSE(answer);
}

TEST_F(EtcdClientTest, AMemberIsKilledAndARequestGoesToAnother) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(3);
  ASSERT_TRUE(cluster.wait_until_ready());
  const auto etcd = client(cluster.urls());
  ASSERT_TRUE(transact(*etcd, {.compare = {}, .put = {{"/k", "v", 0}}, .get = {}}));
  const int leader = cluster.leader();
  ASSERT_GE(leader, 0);
  cluster.kill(leader);
  const auto answer = transact(*etcd, {.compare = {}, .put = {{"/k", "w", 0}}, .get = {"/k"}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->got[0]->value, "w");
}

TEST_F(EtcdClientTest, AClusterWithoutMajorityIsSaidSo) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(3);
  ASSERT_TRUE(cluster.wait_until_ready());
  const auto etcd = client(cluster.urls());
  cluster.kill(0);
  cluster.kill(1);
  const auto answer = transact(*etcd, {.compare = {}, .put = {}, .get = {"/k"}}, Duration(3'000));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kTimeout);
}

TEST_F(EtcdClientTest, DestroyedFromItsOwnCallback) {
  auto etcd = client({"http://127.0.0.1:" + std::to_string(test::free_port())});
  bool called = false;
  for (int i = 0; i < 3; ++i) {
    etcd->transact({.compare = {}, .put = {}, .get = {"/k"}}, Duration(1),
                   [&](const Result<TransactionAnswer>&) {
                     EXPECT_FALSE(called);
                     called = true;
                     etcd.reset();
                   });
  }
  EXPECT_TRUE(test::run_until(io_, [&] { return called; }));
  io_.restart();
  io_.poll();
}

}  // namespace
}  // namespace ddp::etcd
