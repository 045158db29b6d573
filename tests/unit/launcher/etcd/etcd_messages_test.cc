#include "launcher/etcd/etcd_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::etcd {
namespace {

using nlohmann::json;

TEST(EtcdMessages, Base64OfEveryLengthAndByte) {
  // The test vectors of RFC 4648, section 10.
  const std::vector<std::pair<std::string, std::string>> vectors{{"", ""},
                                                                 {"f", "Zg=="},
                                                                 {"fo", "Zm8="},
                                                                 {"foo", "Zm9v"},
                                                                 {"foob", "Zm9vYg=="},
                                                                 {"fooba", "Zm9vYmE="},
                                                                 {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(*from_base64(text), bytes);
  }
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    EXPECT_EQ(*from_base64(to_base64(all)), all);
  }
}

TEST(EtcdMessages, WhatIsNoBase64IsRefused) {
  for (const char* text : {"Z", "Zg=", "Zg==Zg==", "Z===", "Zm9v\n", "Zm9-"}) {
    EXPECT_FALSE(from_base64(text)) << text;
  }
}

TEST(EtcdMessages, ATransactionAsTheGatewayWantsIt) {
  const Transaction transaction{
      .compare = {{"/a", Compare::What::kCreated, 0}, {"/b", Compare::What::kModified, 7}},
      .put = {{"/a", "v", 2324035536617694727}},
      .get = {"/b"}};
  EXPECT_EQ(json::parse(to_json(transaction)), json::parse(R"({
    "compare": [{"key": "L2E=", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
                {"key": "L2I=", "target": "MOD", "result": "EQUAL", "mod_revision": "7"}],
    "success": [{"request_put": {"key": "L2E=", "value": "dg==", "lease": "2324035536617694727"}},
                {"request_range": {"key": "L2I="}}],
    "failure": [{"request_range": {"key": "L2I="}}]})"));
}

// Answers as etcd 3.4.23 gave them.
TEST(EtcdMessages, AnswersToATransaction) {
  const auto succeeded = parse_answer(
      {.compare = {}, .put = {{"/a", "v", 0}}, .get = {"/b"}},
      R"({"header":{"cluster_id":"324952591200643719","revision":"2","raft_term":"2"},"succeeded":true,)"
      R"("responses":[{"response_put":{"header":{"revision":"2"}}},)"
      R"({"response_range":{"header":{"revision":"2"}}}]})");
  ASSERT_TRUE(succeeded) << succeeded.error().message;
  EXPECT_TRUE(succeeded->succeeded);
  EXPECT_EQ(succeeded->revision, 2);
  ASSERT_EQ(succeeded->got.size(), 1u);
  EXPECT_FALSE(succeeded->got[0]);

  const auto failed = parse_answer(
      {.compare = {}, .put = {}, .get = {"/a"}},
      R"({"header":{"revision":"9"},"responses":[{"response_range":{"header":{"revision":"9"},)"
      R"("kvs":[{"key":"L2E=","create_revision":"2","mod_revision":"5","version":"1","value":"dg==",)"
      R"("lease":"2324035536617694727"}],"count":"1"}}]})");
  ASSERT_TRUE(failed) << failed.error().message;
  EXPECT_FALSE(failed->succeeded);
  ASSERT_TRUE(failed->got.at(0));
  EXPECT_EQ(failed->got[0]->key, "/a");
  EXPECT_EQ(failed->got[0]->value, "v");
  EXPECT_EQ(failed->got[0]->create_revision, 2);
  EXPECT_EQ(failed->got[0]->mod_revision, 5);
  EXPECT_EQ(failed->got[0]->lease, 2324035536617694727);
}

TEST(EtcdMessages, BytesThatAreNoAnswerAreRefused) {
  const Transaction transaction{.compare = {}, .put = {}, .get = {"/a"}};
  for (const char* text :
       {"", "[]", "null", "{", R"({"header":{"revision":"x"}})", R"({"header":{"revision":"1"}})",
        R"({"header":{"revision":"1"},"responses":[{"response_range":{"kvs":[{"key":"?"}]}}]})",
        R"({"header":{"revision":"1"},"responses":{"response_range":7}})"}) {
    const auto answer = parse_answer(transaction, text);
    ASSERT_FALSE(answer) << text;
    EXPECT_EQ(answer.error().code, Errc::kProtocol);
  }
  EXPECT_FALSE(parse_lease_grant("{}"));
  EXPECT_FALSE(parse_keep_alive("{}"));
  EXPECT_FALSE(parse_watch("{}"));
}

TEST(EtcdMessages, Leases) {
  EXPECT_EQ(json::parse(lease_grant_json(5)), json::parse(R"({"TTL":"5"})"));
  EXPECT_EQ(*parse_lease_grant(R"({"header":{},"ID":"2324035536617694725","TTL":"3"})"),
            2324035536617694725);
  EXPECT_EQ(*parse_keep_alive(R"({"result":{"header":{},"ID":"7","TTL":"3"}})"), 3);
  EXPECT_EQ(*parse_keep_alive(R"({"result":{"header":{},"ID":"7"}})"), 0);
}

TEST(EtcdMessages, Watches) {
  EXPECT_FALSE(parse_watch(R"({"result":{"header":{},"created":true}})")->changed);
  EXPECT_TRUE(
      parse_watch(R"({"result":{"header":{},"events":[{"type":"DELETE","kv":{"key":"L2E="}}]}})")
          ->changed);
  const auto ended =
      parse_watch(R"({"result":{"header":{},"canceled":true,"cancel_reason":"compacted"}})");
  EXPECT_TRUE(ended->ended);
  EXPECT_EQ(ended->reason, "compacted");
}

TEST(EtcdMessages, Errors) {
  const ErrorAnswer answer = parse_error(
      R"({"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14})");
  EXPECT_EQ(answer.code, 14);
  EXPECT_EQ(answer.message, "etcdserver: no leader");
  EXPECT_EQ(parse_error("404 page not found").message, "404 page not found");
}

}  // namespace
}  // namespace ddp::etcd
