// The store's side of the daemon over real sockets: recorded conversations, and raw clients that
// are slow, incomplete, gone, hostile or too many.
#include <future>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "common/wire/c10d.h"
#include "launcher/server/server.h"
#include "tests/support/process.h"
#include "tests/support/raw_client.h"
#include "tests/support/server_thread.h"
#include "tests/support/store_request.h"
#include "tests/support/store_transcript.h"

namespace ddp::server {
namespace {

using test::number_bytes;
using test::RawClient;
using test::request_bytes;
using test::ServerThread;
using wire::c10d::Dialect;
using wire::c10d::Op;

StoreFigures figures(ServerThread& server) {
  StoreFigures out;
  server.call([&] { out = server.server().facts().store; });
  return out;
}

class StoreFrontTranscriptTest : public testing::TestWithParam<test::Transcript> {};

// The recorded conversations again, one byte a segment.
TEST_P(StoreFrontTranscriptTest, IsAnsweredByteForByteOverASocket) {
  ServerOptions options;
  options.store.old_dialect = GetParam().old_dialect;
  ServerThread server(options);
  std::map<std::string, std::unique_ptr<RawClient>> clients;
  std::uint64_t sent = 0;
  for (const test::TranscriptLine& line : test::read_transcript(GetParam().name)) {
    if (line.connection == "core") continue;  // Not for the daemon.
    SCOPED_TRACE(line.where);
    std::unique_ptr<RawClient>& client = clients[line.connection];
    if (!client) client = std::make_unique<RawClient>(server.port());
    if (line.kind == test::TranscriptLine::kSend) {
      for (const char byte : line.bytes) ASSERT_TRUE(client->send({&byte, 1}));
      // Connections have no order among each other, the lines have.
      sent += line.bytes.size();
      ASSERT_TRUE(test::wait_until([&] { return figures(server).received_bytes == sent; }));
    } else if (line.kind == test::TranscriptLine::kClosed) {
      ASSERT_TRUE(client->is_closed_by_peer());
    } else {
      const bool keys = line.kind == test::TranscriptLine::kKeys;
      const std::string answer = client->receive(line.bytes.size());
      ASSERT_EQ(test::to_hex(keys ? test::sorted_keys(answer) : answer),
                test::to_hex(keys ? test::sorted_keys(line.bytes) : line.bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, StoreFrontTranscriptTest, testing::ValuesIn(test::kTranscripts),
                         [](const auto& given) { return std::string(given.param.name); });

TEST(StoreFrontTest, HalfARequestStallsNobody) {
  const ServerThread server;
  RawClient half(server.port());
  half.send(std::string("\x00\x03\x00", 3));
  RawClient other(server.port());
  other.send(std::string(1, '\x06'));
  EXPECT_EQ(other.receive(8), number_bytes(0));
}

TEST(StoreFrontTest, ASetFollowedByAnyKindOfCloseIsApplied) {
  const ServerThread server;
  {
    // Of PyTorch's clients each asks something first. Who closes before it is seen is dropped,
    // because it may be another user (server_users_test.cc).
    RawClient client(server.port());
    client.send(std::string(1, '\x06'));
    EXPECT_EQ(client.receive(8).size(), 8u);
    client.send(request_bytes(Op::kSet, "closed", "1"));
  }
  RawClient abrupt(server.port());
  // Its answer meets a closed socket, and the set behind it must count all the same.
  abrupt.send(std::string(1, '\x06') + request_bytes(Op::kSet, "reset", "1"));
  EXPECT_EQ(abrupt.receive(8).size(), 8u);
  abrupt.send(std::string(1, '\x06') + request_bytes(Op::kSet, "reset again", "1"));
  abrupt.close();
  RawClient raw(server.port());
  for (const char* const key : {"closed", "reset", "reset again"}) {
    raw.send(request_bytes(Op::kWait, key));
    EXPECT_EQ(raw.receive(1), std::string(1, '\0')) << key;
  }
}

TEST(StoreFrontTest, AClientThatDoesNotReadGetsEverythingOnceItDoes) {
  const ServerThread server;
  // More than the daemon would ever queue for one client, so it has to stop reading its requests.
  constexpr int kRequests = 400;
  const std::string value(1'000'000, 'v');
  RawClient lazy(server.port());
  // The count's answer shows that the set is done: connections have no order among each other.
  lazy.send(request_bytes(Op::kSet, "big", value) + std::string(1, '\x06'));
  ASSERT_EQ(lazy.receive(8), number_bytes(1));
  std::string requests;
  for (int i = 0; i < kRequests; ++i) requests += request_bytes(Op::kGet, "big");
  ASSERT_TRUE(lazy.send(requests));
  // Others are served meanwhile.
  RawClient other(server.port());
  for (int i = 0; i < 100; ++i) {
    other.send(std::string(1, '\x06'));
    ASSERT_EQ(other.receive(8), number_bytes(1));
  }
  for (int i = 0; i < kRequests; ++i) {
    const std::string answer = lazy.receive(8 + value.size());
    ASSERT_EQ(answer.size(), 8 + value.size()) << i;
    ASSERT_EQ(answer.compare(8, value.size(), value), 0) << i;
  }
}

TEST(StoreFrontTest, HostileBytesCloseTheirOwnConnectionOnly) {
  const ServerThread server;
  RawClient good(server.port());
  const std::vector<std::string> hostile = {
      std::string("\xff"), std::string("\x02\x00\x00\x00\x00\x00\x01\x00\x00", 9),
      std::string("\xDDXYZ_"), std::string("\x00\xCE\xF7\x85\x3C\xFE", 6)};
  for (const std::string& bytes : hostile) {
    RawClient client(server.port());
    client.send(bytes);
    EXPECT_TRUE(client.is_closed_by_peer()) << test::to_hex(bytes);
  }
  good.send(std::string(1, '\x06'));
  EXPECT_EQ(good.receive(8), number_bytes(0));
}

TEST(StoreFrontTest, AWaitDiesWithItsConnection) {
  ServerThread server;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(request_bytes(Op::kWait, "never"));
  }
  ASSERT_TRUE(test::wait_until([&] { return figures(server).waits == 100; }));
  for (std::size_t i = 0; i < clients.size(); i += 2) clients[i]->reset();
  clients.clear();
  EXPECT_TRUE(test::wait_until([&] { return figures(server).waits == 0; }));
  EXPECT_TRUE(test::wait_until([&] { return figures(server).connections == 0; }));
}

TEST(StoreFrontTest, AClientThatSendsManyRequestsAtOnceLetsOthersHaveTheirTurn) {
  ServerThread server;
  RawClient greedy(server.port()), other(server.port());
  for (RawClient* const client : {&greedy, &other}) {
    client->send(std::string(1, '\x06'));
    ASSERT_EQ(client->receive(8), number_bytes(0));
  }
  constexpr int kRequests = 2'000;
  std::string add = request_bytes(Op::kAdd, "n");
  add[add.size() - 8] = 1;
  std::string adds;
  for (int i = 0; i < kRequests; ++i) adds += add;
  // All requests are there when the daemon looks, the greedy client's first.
  std::promise<void> held, go;
  std::thread holder([&] {
    server.call([&] {
      held.set_value();
      go.get_future().wait();
    });
  });
  held.get_future().wait();
  ASSERT_TRUE(greedy.send(adds) && other.send(request_bytes(Op::kAdd, "n")));
  go.set_value();
  holder.join();
  // How many of the greedy client's had been served.
  const std::int64_t before = wire::c10d::get_i64(other.receive(8).data());
  EXPECT_GT(before, 0);
  EXPECT_LT(before, kRequests / 2);
  EXPECT_EQ(greedy.receive(std::size_t{8} * kRequests).size(), std::size_t{8} * kRequests);
}

TEST(StoreFrontTest, OneConnectionTooManyIsClosedAndTheOthersStay) {
  ServerOptions options;
  options.max_connections = 3;
  ServerThread server(options);
  RawClient first(server.port()), second(server.port());
  auto third = std::make_unique<RawClient>(server.port());
  for (RawClient* const client : {&first, &second, third.get()}) {
    client->send(std::string(1, '\x06'));
    ASSERT_EQ(client->receive(8), number_bytes(0));
  }
  RawClient fourth(server.port());
  EXPECT_TRUE(fourth.is_closed_by_peer());
  first.send(std::string(1, '\x06'));
  EXPECT_EQ(first.receive(8), number_bytes(0));
  third->reset();
  ASSERT_TRUE(test::wait_until([&] { return figures(server).connections == 2; }));
  RawClient successor(server.port());
  successor.send(std::string(1, '\x06'));
  EXPECT_EQ(successor.receive(8), number_bytes(0));
}

TEST(StoreFrontTest, WhatExceedsAnOptionClosesAndWhatFitsDoesNot) {
  ServerOptions options;
  options.store.limits = {10, 20, 2, 60};
  options.store.max_answer_bytes = 50;
  ServerThread server(options);
  const std::string key(10, 'k'), value(20, 'v');
  RawClient good(server.port());
  good.send(request_bytes(Op::kSet, key, value) + request_bytes(Op::kGet, key));
  EXPECT_EQ(good.receive(28).size(), 28u);
  wire::c10d::Request many;
  many.op = Op::kCheck;
  many.keys.assign(3, "k");
  std::string three;
  wire::c10d::encode_request(many, Dialect::kLegacy, three);
  wire::c10d::Request twice;
  twice.op = Op::kMultiGet;
  twice.keys.assign(2, key);
  std::string large_answer;
  wire::c10d::encode_request(twice, Dialect::kInterim, large_answer);
  for (const std::string& bytes :
       {request_bytes(Op::kGet, key + "k"), request_bytes(Op::kSet, "k", value + "v"), three,
        large_answer}) {
    RawClient client(server.port());
    client.send(bytes);
    EXPECT_TRUE(client.is_closed_by_peer()) << test::to_hex(bytes);
  }
}

TEST(StoreFrontTest, ItsFiguresAreThoseOfWhatItHolds) {
  ServerThread server;
  RawClient client(server.port());
  client.send(request_bytes(Op::kSet, "key", "value") + request_bytes(Op::kWait, "other"));
  ASSERT_TRUE(test::wait_until([&] { return figures(server).waits == 1; }));
  const StoreFigures now = figures(server);
  EXPECT_EQ(now.connections, 1u);
  EXPECT_EQ(now.keys, 1u);
  EXPECT_EQ(now.bytes, 8u);
  EXPECT_EQ(now.requests[static_cast<std::size_t>(Op::kSet)], 1u);
  EXPECT_EQ(now.requests[static_cast<std::size_t>(Op::kWait)], 1u);
  EXPECT_EQ(now.all_requests(), 2u);
}

}  // namespace
}  // namespace ddp::server
