// TcpStore against our daemon: the contract in every dialect, servers with fewer operations,
// connections that are cut anywhere, and a daemon that is restarted.
#include "common/store/tcp_store.h"

#include <atomic>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/process.h"
#include "tests/support/relay.h"
#include "tests/support/server_thread.h"
#include "tests/support/store_contract.h"

namespace ddp::test {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): literals only.
using wire::c10d::Dialect;
using Way = Relay::Way;

std::unique_ptr<Store> connect(int port, std::optional<Dialect> dialect = {}) {
  TcpStoreOptions options;
  options.timeout = 20s;
  options.dialect = dialect;
  return connect_tcp_store("127.0.0.1", port, options).value();
}

template <Dialect dialect>
StoreMaker stores() {
  return [server = std::make_shared<ServerThread>()] { return connect(server->port(), dialect); };
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, StoreContract,
    testing::Values(StoreCase{"Newest", stores<Dialect::kNewest>},
                    StoreCase{"Interim", stores<Dialect::kInterim>, false, true},
                    StoreCase{"Legacy", stores<Dialect::kLegacy>, false, true}),
    [](const auto& given) { return given.param.name; });

// Our daemon behind a relay that closes at what an older server does not know. `opcodes`: of
// requests behind the greeting.
struct OldServer {
  explicit OldServer(const std::vector<std::string>& greetings, const std::string& opcodes = "")
      : relay(server.port(), [=](Way way, std::string_view bytes) {
          if (way == Way::kToClient) return true;
          for (const std::string& greeting : greetings) {
            if (bytes.starts_with(greeting)) return false;
          }
          return opcodes.find(bytes[0]) == std::string::npos;
        }) {}
  ServerThread server;
  Relay relay;
};

const std::string kValidate("\x00\xCE\xF7\x85\x3C", 5);
const std::string kPing = kValidate + "\x0D";
const std::string kCountAndCancel("\x06\x0B", 2);

TEST(TcpStoreDialectTest, GoesDownToWhatTheServerSpeaks) {
  {
    OldServer old({});
    auto store = connect(old.relay.port());
    EXPECT_TRUE(store->list_keys());
    EXPECT_EQ(old.relay.num_accepted(), 1u) << "the newest greeting is the first";
  }
  {
    OldServer old({kPing}, std::string("\x0E\x0F\x10\x11\x12"));  // 2.2 to 2.4
    auto store = connect(old.relay.port());
    EXPECT_EQ(store->list_keys().error().code, Errc::kInvalidArgument);
    EXPECT_EQ(store->add("n", 1).value(), 1);
    EXPECT_EQ(store->get("n", 20s).value(), "1");
  }
  {
    OldServer old({kValidate});  // 2.1
    auto store = connect(old.relay.port());
    EXPECT_EQ(store->list_keys().error().code, Errc::kInvalidArgument);
    EXPECT_EQ(store->add("n", 1).value(), 1);
  }
  {
    OldServer old({kValidate, kCountAndCancel});  // 1.9 to 2.0
    auto store = connect(old.relay.port());
    const auto refused = store->list_keys();
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("PyTorch 1.9 to 2.0"), std::string::npos)
        << refused.error().message;
    EXPECT_EQ(store->add("n", 1).value(), 1);
  }
}

// A server without libuv closes at the GET of an absent key, so WAIT and GET at once do not work.
TEST(TcpStoreDialectTest, GetsInTwoTripsWhereOneClosesTheConnection) {
  ServerThread server;
  Relay relay(server.port(), [](Way way, std::string_view bytes) {
    const std::string get("\x03\x02\x00\x00\x00\x00\x00\x00\x00/k", 11);
    return way == Way::kToClient || bytes.size() <= get.size() || !bytes.ends_with(get);
  });
  auto store = connect(relay.port());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(store->get("k", 5ms).error().code, Errc::kTimeout);
  EXPECT_EQ(relay.num_accepted(), 3u) << "it tried twice";
  ASSERT_TRUE(store->set("k", "v"));
  EXPECT_EQ(store->get("k", 20s).value(), "v");
}

TEST(TcpStoreDialectTest, SomethingElseAtThePortIsSaid) {
  ServerThread server;
  // What an HTTP server says to our bytes.
  Relay relay(server.port(), [](Way, std::string_view) { return false; });
  const auto store = connect_tcp_store("127.0.0.1", relay.port(), 50ms);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Errc::kTimeout);
  EXPECT_NE(store.error().message.find("no TCP store within 50 ms"), std::string::npos)
      << store.error().message;
}

TEST(TcpStoreTest, AGetOfAKeyThatIsThereIsOneRoundTrip) {
  ServerThread server;
  std::atomic<int> requests{0};
  Relay relay(server.port(), [&](Way way, std::string_view) {
    if (way == Way::kToServer) ++requests;
    return true;
  });
  auto store = connect(relay.port());
  ASSERT_TRUE(store->set("k", "v"));
  requests = 0;
  for (int i = 0; i < 10; ++i) ASSERT_EQ(store->get("k", 20s).value(), "v");
  EXPECT_EQ(requests, 10);
}

// One operation of a client, with how to tell what it did.
struct Operation {
  std::string name;
  std::function<void(Store& direct)> prepare;
  // Whether it succeeded; `answer` is what the operation gave, as text.
  std::function<Result<std::string>(Store& store)> run;
  // Whether the operation has been done once, as seen by another client after prepare() and run().
  std::function<bool(Store& direct)> was_done;
  std::string right_answer;
};

template <typename T>
Result<std::string> as_text(const Result<T>& result) {
  if (!result) return result.error();
  if constexpr (std::is_same_v<T, std::string>) {
    return *result;
  } else {
    return fmt::format("{}", *result);
  }
}
Result<std::string> as_text(const Result<void>& result) {
  if (!result) return result.error();
  return std::string("done");
}

bool always(Store&) { return true; }
void prepare_values(Store& direct) {
  ASSERT_TRUE(direct.set("a", "1"));
  ASSERT_TRUE(direct.set("b", "22"));
  ASSERT_TRUE(direct.set("empty", ""));
}

std::vector<Operation> repeated_operations() {
  const auto prepare = prepare_values;
  return {
      {"get", prepare, [](Store& s) { return as_text(s.get("b", 20s)); }, always, "22"},
      {"get empty", prepare, [](Store& s) { return as_text(s.get("empty", 20s)); }, always, ""},
      {"wait", prepare,
       [](Store& s) {
         return as_text(s.wait({"a", "b"}, 20s));
       },
       always, "done"},
      {"check", prepare,
       [](Store& s) {
         return as_text(s.check({"a", "no"}));
       },
       always, "false"},
      {"set", [](Store& s) { (void)s.delete_key("set"); },
       [](Store& s) { return as_text(s.set("set", "v")); },
       [](Store& s) { return s.get("set", 0ms).value() == "v"; }, "done"},
  };
}

std::vector<Operation> single_operations() {
  const auto clear = [](Store& direct) { (void)direct.delete_key("k"); };
  const auto fill = [clear](Store& direct) {
    clear(direct);
    ASSERT_TRUE(direct.set("k", "v"));
  };
  const auto key_is = [](const char* value) {
    return [value](Store& s) {
      const auto now = s.get("k", 0ms);
      if (now && *now != value) ADD_FAILURE() << "done more than once: " << *now;
      return now.has_value();
    };
  };
  return {
      {"add", clear, [](Store& s) { return as_text(s.add("k", 1)); }, key_is("1"), "1"},
      {"compare_set", clear, [](Store& s) { return as_text(s.compare_set("k", "", "x")); },
       key_is("x"), "x"},
      {"delete_key", fill, [](Store& s) { return as_text(s.delete_key("k")); },
       [](Store& s) { return !s.check({"k"}).value(); }, "true"},
  };
}

class TcpStoreCutTest : public testing::Test {
 protected:
  // What the cut lets through.
  enum class Reached { kPartOfTheRequest, kRequest, kPartOfTheAnswer };
  // Cuts the connection at every place of the operation's bytes, each way, each kind of end.
  void cut_everywhere(const Operation& operation,
                      const std::function<void(bool succeeded, Reached reached)>& check) {
    SCOPED_TRACE(operation.name);
    operation.prepare(*direct_);
    ASSERT_TRUE(operation.run(*store_));  // Whatever it does the first time only.
    for (const Way way : {Way::kToServer, Way::kToClient}) {
      operation.prepare(*direct_);
      relay_.count(way);
      ASSERT_EQ(operation.run(*store_).value(), operation.right_answer);
      const std::size_t bytes = relay_.count(way);
      ASSERT_GT(bytes, 0u);
      // Behind the last byte of the answer nothing is cut.
      for (std::size_t after = 0; after < bytes + (way == Way::kToServer ? 1 : 0); ++after) {
        for (const bool reset : {false, true}) {
          operation.prepare(*direct_);
          relay_.cut({way, after, reset});
          const Result<std::string> answer = operation.run(*store_);
          SCOPED_TRACE(fmt::format("cut after {} of {} bytes {}, {}", after, bytes,
                                   way == Way::kToServer ? "to the server" : "to the client",
                                   answer ? *answer : answer.error().message));
          ASSERT_TRUE(relay_.has_cut());
          if (answer) {
            EXPECT_EQ(*answer, operation.right_answer);
          } else {
            ASSERT_EQ(answer.error().code, Errc::kPeerLost);
            ASSERT_NE(answer.error().message.find("may or may not"), std::string::npos);
          }
          const bool is_part = after < bytes;
          check(answer.has_value(), way == Way::kToClient ? Reached::kPartOfTheAnswer
                                    : is_part             ? Reached::kPartOfTheRequest
                                                          : Reached::kRequest);
          if (HasFailure()) return;
        }
      }
    }
  }

  ServerThread server_;
  Relay relay_{server_.port()};
  std::unique_ptr<Store> store_ = connect(relay_.port());
  std::unique_ptr<Store> direct_ = connect(server_.port());
};

TEST_F(TcpStoreCutTest, WhatMayBeDoneTwiceSucceedsWhereverTheConnectionIsCut) {
  for (const Operation& operation : repeated_operations()) {
    cut_everywhere(operation, [&](bool succeeded, Reached) {
      EXPECT_TRUE(succeeded);
      EXPECT_TRUE(operation.was_done(*direct_));
    });
  }
}

TEST_F(TcpStoreCutTest, WhatMayNotIsNeverDoneTwiceAndItsDoubtIsSaid) {
  for (const Operation& operation : single_operations()) {
    cut_everywhere(operation, [&](bool succeeded, Reached reached) {
      // The whole request had been handed over, so the client cannot know.
      EXPECT_FALSE(succeeded);
      const bool was_done = operation.was_done(*direct_);
      if (reached != Reached::kRequest) {
        EXPECT_EQ(was_done, reached == Reached::kPartOfTheAnswer);
      }
      // The object goes on.
      operation.prepare(*direct_);
      EXPECT_EQ(operation.run(*store_).value(), operation.right_answer);
      EXPECT_TRUE(operation.was_done(*direct_));
    });
  }
}

TEST_F(TcpStoreCutTest, AConnectionThatWasLostInBetweenIsNoMatter) {
  std::vector<Operation> operations = repeated_operations();
  for (const Operation& operation : single_operations()) operations.push_back(operation);
  for (const Operation& operation : operations) {
    SCOPED_TRACE(operation.name);
    operation.prepare(*direct_);
    relay_.close_all();
    const Result<std::string> answer = operation.run(*store_);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(*answer, operation.right_answer);
    EXPECT_TRUE(operation.was_done(*direct_));
  }
}

// Once the wait is at the server, its connection is cut; then the key comes.
TEST_F(TcpStoreCutTest, AWaitAndAGetGoOnWaitingOnANewConnection) {
  for (const bool with_value : {false, true}) {
    const std::string key = with_value ? "got" : "waited";
    const std::size_t accepted = relay_.num_accepted();
    std::thread waiter([&] {
      const Result<std::string> got =
          with_value ? store_->get(key, 20s) : as_text(store_->wait({key}, 20s));
      EXPECT_TRUE(got) << got.error().message;
    });
    ASSERT_TRUE(wait_until([&] { return relay_.count(Way::kToServer) > 0; }));
    relay_.close_all();
    ASSERT_TRUE(wait_until([&] { return relay_.num_accepted() > accepted; }));
    ASSERT_TRUE(direct_->set(key, "v"));
    waiter.join();
  }
}

TEST(TcpStoreLostTest, ADaemonThatIsStartedAnewIsFoundAgain) {
  auto server = std::make_unique<ServerThread>();
  server::ServerOptions options;
  options.port = server->port();
  options.bind_address = "127.0.0.1";
  auto store = connect(options.port);
  ASSERT_EQ(store->add("n", 1).value(), 1);
  std::thread waiter(
      [other = connect(options.port)] { EXPECT_EQ(other->get("late", 20s).value(), "v"); });
  server.reset();
  server = std::make_unique<ServerThread>(options);
  EXPECT_EQ(store->add("n", 1).value(), 1) << "nothing is left of the old one";
  ASSERT_TRUE(store->set("late", "v"));
  waiter.join();
}

TEST(TcpStoreLostTest, GivesUpAfterItsTimeAndThenAtOnce) {
  auto server = std::make_unique<ServerThread>();
  TcpStoreOptions options;
  options.timeout = 20s;
  options.retry = 2s;
  const int port = server->port();
  auto store = connect_tcp_store("127.0.0.1", port, options).value();
  server.reset();
  const auto lost = Clock::now();
  const Result<void> waited = store->wait({"k"}, 20s);
  ASSERT_FALSE(waited);
  EXPECT_GE(Clock::now() - lost, 2s);
  EXPECT_EQ(waited.error().code, Errc::kPeerLost);
  for (const std::string& part :
       {"127.0.0.1:" + std::to_string(port), "not restored within 2000 ms"s}) {
    EXPECT_NE(waited.error().message.find(part), std::string::npos) << waited.error().message;
  }
  const auto begin = Clock::now();
  EXPECT_EQ(store->num_keys().error().message, waited.error().message) << "the first cause stays";
  EXPECT_LT(Clock::now() - begin, 1s);
}

TEST(TcpStoreLostTest, AnOperationsOwnDeadlineHolds) {
  auto server = std::make_unique<ServerThread>();
  const int port = server->port();
  TcpStoreOptions patient;
  patient.timeout = 20s;
  patient.retry = 60s;
  auto store = connect_tcp_store("127.0.0.1", port, patient).value();
  server.reset();
  const auto begin = Clock::now();
  EXPECT_EQ(store->get("k", 20ms).error().code, Errc::kPeerLost);
  EXPECT_LT(Clock::now() - begin, 20s) << "not as long as a connection is tried for";
  server::ServerOptions options;
  options.port = port;
  options.bind_address = "127.0.0.1";
  server = std::make_unique<ServerThread>(options);
  EXPECT_TRUE(store->set("k", "v")) << "the object is not given up yet";
}

// A request that may not be sent twice is in doubt, and the connection gone. A program computes
// meanwhile.
TEST(TcpStoreLostTest, TheTimeInWhichNobodyTriesDoesNotCount) {
  ServerThread server;
  std::atomic<bool> cuts = false;
  Relay relay(server.port(),
              [&](Way way, std::string_view) { return way != Way::kToServer || !cuts; });
  TcpStoreOptions options;
  options.timeout = 20s;
  options.retry = 1s;
  auto store = connect_tcp_store("127.0.0.1", relay.port(), options).value();
  cuts = true;
  EXPECT_FALSE(store->add("n", 1));
  cuts = false;
  std::this_thread::sleep_for(1100ms);  // sleep: the program's work
  const Result<void> set = store->set("k", "v");
  EXPECT_TRUE(set) << set.error().message;
}

TEST(TcpStoreTest, NamesTheMissingKeysOfABigWait) {
  ServerThread server;
  auto store = connect(server.port());
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back("key" + std::to_string(i));
  const Result<void> waited = store->wait(keys, 0ms);
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().message.find("'key0', 'key1'"), std::string::npos);
  EXPECT_NE(waited.error().message.find("or among 84 more keys"), std::string::npos)
      << waited.error().message;
}

}  // namespace
}  // namespace ddp::test
