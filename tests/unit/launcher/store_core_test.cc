// The semantics of the store: recorded conversations with PyTorch, byte for byte, and what they do
// not cover. tests/sim/store_sim_test runs all operations in all orders.
#include "launcher/rendezvous/store_core.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/support/store_transcript.h"

namespace ddp::rendezvous {
namespace {

using wire::c10d::Dialect;
using wire::c10d::Op;
using wire::c10d::Request;

// Connections by name, each with its parser and what it has been sent.
class StoreHarness {
 public:
  explicit StoreHarness(Dialect dialect = Dialect::kNewest, std::size_t max_answer_bytes = 1u << 20)
      : dialect_(dialect), core_(max_answer_bytes) {}

  // As the server does it: bytes into the connection's parser, its requests into the core.
  void receive(const std::string& name, std::string_view bytes) {
    const wire::c10d::RequestParser parser(
        {}, dialect_ == Dialect::kInterim ? Dialect::kInterim : Dialect::kLegacy);
    Connection& connection = connections_.try_emplace(name, Connection{parser, {}}).first->second;
    if (connection.closed) return;
    connection.parser.append(bytes);
    while (!connection.closed) {
      const Result<const Request*> request = connection.parser.next();
      if (request && *request == nullptr) return;
      if (!request) {
        connection.closed = true;
        return;
      }
      perform(name, *connection.parser.dialect(), **request);
    }
  }

  void perform(const std::string& name, Dialect dialect, const Request& request) {
    StoreCore::Effects effects;
    core_.on_request(id(name), dialect, request, effects);
    connections_[name].sent += effects.answer;
    for (const auto& output : effects.outputs)
      connections_[names_.at(output.to)].sent += output.bytes;
    if (!effects.close_reason.empty()) disconnect(name);
  }

  // One request in this harness's dialect; its answer, and with it everything sent before.
  std::string ask(const std::string& name, const Request& request) {
    perform(name, dialect_, request);
    return take(name);
  }
  std::string take(const std::string& name) { return std::exchange(connections_[name].sent, {}); }
  bool is_closed(const std::string& name) { return connections_[name].closed; }
  void disconnect(const std::string& name) {
    connections_[name].closed = true;
    core_.on_disconnect(id(name));
  }
  StoreCore& core() { return core_; }
  // What has been sent to anybody and not been taken.
  std::string unread() const {
    std::string out;
    for (const auto& [name, connection] : connections_) out += connection.sent;
    return out;
  }

 private:
  struct Connection {
    wire::c10d::RequestParser parser{};
    std::string sent;
    bool closed = false;
  };
  StoreCore::ClientId id(const std::string& name) {
    const auto [found, is_new] = ids_.emplace(name, ids_.size() + 1);
    if (is_new) names_.emplace(found->second, name);
    return found->second;
  }

  Dialect dialect_;
  StoreCore core_;
  std::map<std::string, Connection> connections_;
  std::map<std::string, StoreCore::ClientId> ids_;
  std::map<StoreCore::ClientId, std::string> names_;
};

Request with(Op op, std::string_view key = {}, std::string_view value = {},
             std::int64_t number = 0) {
  Request request;
  request.op = op;
  request.key = key;
  request.value = value;
  request.number = number;
  return request;
}
Request with_keys(Op op, std::vector<std::string_view> keys) {
  Request request;
  request.op = op;
  request.keys = std::move(keys);
  return request;
}
Request compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  Request request = with(Op::kCompareSet, key, desired);
  request.expected = expected;
  return request;
}
std::string number(std::int64_t value) {
  std::string out;
  wire::c10d::put_i64(out, value);
  return out;
}
std::string text(std::string_view value) {
  std::string out;
  wire::c10d::put_string(out, value);
  return out;
}
const std::string kZero(1, '\0');
const std::string kOne(1, '\1');

class TranscriptTest : public testing::TestWithParam<test::Transcript> {};

TEST_P(TranscriptTest, IsAnsweredByteForByte) {
  StoreHarness harness(GetParam().old_dialect);
  int lines = 0;
  for (const test::TranscriptLine& line : test::read_transcript(GetParam().name)) {
    SCOPED_TRACE(line.where);
    ++lines;
    switch (line.kind) {
      case test::TranscriptLine::kSend:
        harness.receive(line.connection, line.bytes);
        break;
      case test::TranscriptLine::kAnswer:
        ASSERT_EQ(test::to_hex(harness.take(line.connection)), test::to_hex(line.bytes));
        break;
      case test::TranscriptLine::kKeys:
        ASSERT_EQ(test::to_hex(test::sorted_keys(harness.take(line.connection))),
                  test::to_hex(test::sorted_keys(line.bytes)));
        break;
      case test::TranscriptLine::kClosed:
        ASSERT_TRUE(harness.is_closed(line.connection));
        break;
    }
  }
  EXPECT_GT(lines, 10);
  EXPECT_EQ(harness.unread(), "");
}

INSTANTIATE_TEST_SUITE_P(PyTorch, TranscriptTest, testing::ValuesIn(test::kTranscripts),
                         [](const auto& given) { return std::string(given.param.name); });

TEST(StoreCoreTest, ListsTheKeysButNoQueues) {
  StoreHarness h;
  h.ask("a", with(Op::kSet, "/a", "1"));
  h.ask("a", with(Op::kSet, "init/", "1"));
  h.ask("a", with(Op::kQueuePush, "/q", "x"));
  const std::string answer = h.ask("a", with(Op::kListKeys));
  EXPECT_TRUE(answer == number(2) + text("/a") + text("init/") ||
              answer == number(2) + text("init/") + text("/a"));
  EXPECT_EQ(h.ask("a", with(Op::kNumKeys)), number(2));
}

TEST(StoreCoreTest, AnEmptyValueEqualsTheEmptyExpectationAndIsReplaced) {
  StoreHarness h;
  h.ask("a", with(Op::kSet, "k", ""));
  EXPECT_EQ(h.ask("a", compare_set("k", "", "new")), text("new"));
  EXPECT_EQ(h.ask("a", with(Op::kGet, "k")), text("new"));
}

TEST(StoreCoreTest, EveryWriteThatStoresWakesAndOthersDoNot) {
  const std::vector<Request> waking = {with(Op::kSet, "k", "v"), with(Op::kAdd, "k", {}, 0),
                                       with(Op::kAppend, "k", "v"), compare_set("k", "", "v"),
                                       with(Op::kQueuePush, "k", "v")};
  for (const Request& request : waking) {
    StoreHarness h;
    EXPECT_EQ(h.ask("waiter", with_keys(Op::kWait, {"k"})), "");
    h.ask("writer", request);
    EXPECT_EQ(h.take("waiter"), kZero) << wire::c10d::op_name(request.op);
    EXPECT_EQ(h.core().num_waits(), 0u);
  }
  const std::vector<Request> silent = {compare_set("k", "x", "v"), with(Op::kDeleteKey, "k"),
                                       with(Op::kSet, "other", "v"), with(Op::kGet, "k"),
                                       with(Op::kQueuePop, "k")};
  for (const Request& request : silent) {
    StoreHarness h;
    h.ask("waiter", with_keys(Op::kWait, {"k"}));
    h.ask("writer", request);
    EXPECT_EQ(h.take("waiter"), "") << wire::c10d::op_name(request.op);
  }
}

TEST(StoreCoreTest, AMultiSetWakesAWaiterOnce) {
  StoreHarness h;
  h.ask("waiter", with_keys(Op::kWait, {"a", "b", "a"}));
  Request request = with_keys(Op::kMultiSet, {"a", "b", "a"});
  request.values = {"1", "2", "3"};
  h.ask("writer", request);
  EXPECT_EQ(h.take("waiter"), kZero);
  EXPECT_EQ(h.ask("writer", with(Op::kGet, "a")), text("3"));
}

TEST(StoreCoreTest, AWaitThatIsReplacedLeavesNothingBehind) {
  StoreHarness h;
  h.ask("a", with_keys(Op::kWait, {"old"}));
  h.ask("a", with_keys(Op::kWait, {"new"}));
  h.ask("b", with(Op::kSet, "old", ""));
  EXPECT_EQ(h.take("a"), "");
  h.ask("b", with(Op::kSet, "new", ""));
  EXPECT_EQ(h.take("a"), kZero);
}

TEST(StoreCoreTest, ACancelledWaitIsForgottenAndAlwaysAnswered) {
  StoreHarness h;
  h.ask("a", with_keys(Op::kWait, {"k", "l"}));
  EXPECT_EQ(h.ask("a", with(Op::kCancelWait)), kOne);
  EXPECT_EQ(h.core().num_waits(), 0u);
  h.ask("b", with(Op::kSet, "k", ""));
  h.ask("b", with(Op::kSet, "l", ""));
  EXPECT_EQ(h.take("a"), "");
  // The answer crossed the cancellation: both bytes come, in this order.
  h.ask("a", with_keys(Op::kWait, {"m"}));
  h.ask("b", with(Op::kSet, "m", ""));
  EXPECT_EQ(h.ask("a", with(Op::kCancelWait)), kZero + kOne);
}

TEST(StoreCoreTest, OnlyALegacyClientEndsItsWaitByAskingSomethingElse) {
  for (const Dialect dialect : {Dialect::kNewest, Dialect::kInterim, Dialect::kLegacy}) {
    StoreHarness h(dialect);
    h.ask("a", with_keys(Op::kWait, {"k"}));
    EXPECT_EQ(h.ask("a", with(Op::kNumKeys)), number(0));
    h.ask("b", with(Op::kSet, "k", ""));
    EXPECT_EQ(h.take("a"), dialect == Dialect::kLegacy ? "" : kZero);
  }
}

TEST(StoreCoreTest, ADisconnectEndsWaitsAndWatches) {
  StoreHarness h(Dialect::kLegacy);
  h.ask("waiter", with_keys(Op::kWait, {"k", "l"}));
  EXPECT_EQ(h.ask("watcher", with(Op::kWatchKey, "k")), "\x03");
  h.disconnect("waiter");
  h.disconnect("watcher");
  h.disconnect("watcher");
  h.ask("b", with(Op::kSet, "k", "v"));
  EXPECT_EQ(h.take("watcher"), "");
  EXPECT_EQ(h.take("waiter"), "");
  EXPECT_EQ(h.core().num_waits(), 0u);
}

TEST(StoreCoreTest, AWatchThatIsAskedForTwiceTellsOnce) {
  StoreHarness h(Dialect::kLegacy);
  h.ask("w", with(Op::kWatchKey, "k"));
  EXPECT_EQ(h.ask("w", with(Op::kWatchKey, "k")), "\x03");
  h.ask("b", compare_set("k", "x", "no"));
  EXPECT_EQ(h.take("w"), "") << "a compare_set that does not store";
  h.ask("b", compare_set("k", "", "yes"));
  EXPECT_EQ(h.take("w"), "\x01" + text("k") + text("") + text("yes"));
  h.ask("b", with(Op::kDeleteKey, "absent"));
  EXPECT_EQ(h.take("w"), "");
}

TEST(StoreCoreTest, APushWakesTheFirstWaiterOnly) {
  StoreHarness h;
  h.ask("first", with_keys(Op::kWait, {"q"}));
  h.ask("second", with_keys(Op::kWait, {"q"}));
  h.ask("b", with(Op::kQueuePush, "q", "1"));
  EXPECT_EQ(h.take("first"), kZero);
  EXPECT_EQ(h.take("second"), "");
  EXPECT_EQ(h.ask("b", with_keys(Op::kCheck, {"q"})), kZero) << "a queue counts as present";
  h.ask("b", with(Op::kQueuePush, "q", "2"));
  EXPECT_EQ(h.take("second"), kZero);
  EXPECT_EQ(h.ask("first", with(Op::kQueuePop, "q")), number(2) + text("1"));
  EXPECT_EQ(h.ask("first", with(Op::kQueuePop, "q")), number(1) + text("2"));
  EXPECT_EQ(h.ask("first", with(Op::kQueuePop, "q")), number(0));
  EXPECT_EQ(h.ask("b", with_keys(Op::kCheck, {"q"})), kOne);
}

TEST(StoreCoreTest, AQueueAndAValueOfOneNameAreTwoThings) {
  StoreHarness h;
  h.ask("a", with(Op::kQueuePush, "k", "queued"));
  EXPECT_EQ(h.ask("a", with(Op::kGet, "k")), text(""));
  h.ask("a", with(Op::kSet, "k", "value"));
  EXPECT_EQ(h.ask("a", with(Op::kDeleteKey, "k")), number(1));
  EXPECT_EQ(h.ask("a", with(Op::kQueueLen, "k")), number(1));
}

TEST(StoreCoreTest, ABarrierCountsCancelledArrivalsAndStaysOpen) {
  StoreHarness h;
  EXPECT_EQ(h.ask("a", with(Op::kBarrier, "bar", {}, 3)), "");
  EXPECT_EQ(h.ask("a", with(Op::kCancelWait)), kOne);
  EXPECT_EQ(h.ask("b", with(Op::kBarrier, "bar", {}, 3)), "");
  EXPECT_EQ(h.ask("c", with(Op::kBarrier, "bar", {}, 3)), kZero);
  EXPECT_EQ(h.take("b"), kZero);
  EXPECT_EQ(h.take("a"), "");
  EXPECT_EQ(h.ask("d", with(Op::kBarrier, "bar", {}, 3)), kZero);
  EXPECT_EQ(h.ask("d", with(Op::kGet, "bar")), text("4"));
}

TEST(StoreCoreTest, ABarrierOverAValueThatIsNoNumberCloses) {
  StoreHarness h;
  h.ask("a", with(Op::kSet, "bar", "x"));
  h.ask("a", with(Op::kBarrier, "bar", {}, 2));
  EXPECT_TRUE(h.is_closed("a"));
}

TEST(StoreCoreTest, AnAnswerBeyondTheLimitClosesInsteadOfGrowing) {
  StoreHarness h(Dialect::kNewest, 1'000);
  const std::string value(300, 'v');
  h.ask("a", with(Op::kSet, "k", value));
  EXPECT_EQ(h.ask("a", with_keys(Op::kMultiGet, {"k", "k"})).size(), 2 * 308u);
  EXPECT_EQ(h.ask("a", with_keys(Op::kMultiGet, {"k", "k", "k", "k"})), "");
  EXPECT_TRUE(h.is_closed("a"));
}

}  // namespace
}  // namespace ddp::rendezvous
