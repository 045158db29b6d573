// PyTorch's own C++ client, c10d::TCPStore of the installed LibTorch, against ddp-rendezvous'
// server. The features of the client differ between versions of LibTorch, so each test asks for
// them. The tests also run against PyTorch's own server, as far as it has the feature, to verify
// that they expect the right thing.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include "tests/support/server_thread.h"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): literals only.
using c10d::TCPStore;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

using Bytes = std::vector<std::uint8_t>;
using Client = c10::intrusive_ptr<TCPStore>;

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// What there is only since some version. Templates, because other versions must not look inside.
template <typename Store>
concept Extended = requires(Store& store) {
  store.multiGet({});
};
template <typename Store>
concept Cloned = requires(Store& store) {
  store.clone();
};
template <typename Store>
concept Queued = requires(Store& store) {
  store.queueLen("");
};
template <typename Store>
concept Listed = requires(Store& store) {
  store.listKeys();
};
template <typename Store>
concept HasBarrier = requires(Store& store) {
  store.barrier("", 1, 1s);
};
template <typename Store>
concept Split = requires(Store& store) {
  store._splitSet("", {});
};

// A client refuses queues unless it was made for libuv, which Debian's LibTorch has not, so that
// such a client cannot be made; the bytes that it sends are the same. The member that says so is
// private: naming it as a template's argument is how C++ lets somebody else do so.
template <auto Member>
struct UsesLibUv {
  friend bool& uses_lib_uv(TCPStore& store) { return store.*Member; }
};
#if TORCH_VERSION_MAJOR >= 2
bool& uses_lib_uv(TCPStore& store);
template struct UsesLibUv<&TCPStore::usingLibUv_>;
#endif

c10d::TCPStoreOptions options_for(int port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions result;
  result.port = static_cast<std::uint16_t>(port);
  result.waitWorkers = false;
  result.timeout = timeout;
  [](auto& options) {
    if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
  }(result);
  return result;
}

enum class Which { kOurs, kPyTorchs };
std::ostream& operator<<(std::ostream& out, Which which) {
  return out << (which == Which::kOurs ? "ours" : "PyTorch's");
}

class C10dStore : public testing::TestWithParam<Which> {
 protected:
  C10dStore() {
    if (GetParam() == Which::kOurs) {
      ours_ = std::make_unique<ServerThread>();
    } else {
      auto options = options_for(0, 60s);
      options.isServer = true;
      theirs_ = c10::make_intrusive<TCPStore>("127.0.0.1", options);
    }
  }

  int port() const { return ours_ ? ours_->port() : theirs_->getPort(); }
  Client client(std::chrono::milliseconds timeout = 60s) const {
    return c10::make_intrusive<TCPStore>("127.0.0.1", options_for(port(), timeout));
  }

 private:
  std::unique_ptr<ServerThread> ours_;
  Client theirs_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_P(C10dStore, ValuesAndCounters) {
  const Client store = client();
  Bytes every(256);
  for (std::size_t value = 0; value < every.size(); ++value) {
    every[value] = static_cast<std::uint8_t>(value);
  }
  store->set("every", every);
  EXPECT_EQ(store->get("every"), every);
  store->set("every", Bytes{});
  EXPECT_EQ(store->get("every"), Bytes{});
  EXPECT_EQ(store->add("count", 5), 5);
  EXPECT_EQ(store->add("count", -7), -2);
  EXPECT_EQ(text(store->get("count")), "-2");
  store->set("preset", bytes("40"));
  EXPECT_EQ(store->add("preset", 2), 42);
  EXPECT_EQ(store->add("large", std::int64_t{1} << 62), std::int64_t{1} << 62);
}

TEST_P(C10dStore, CompareSet) {
  const Client store = client();
  const auto compare_set = [&](const char* key, const char* expected, const char* desired) {
    return text(store->compareSet(key, bytes(expected), bytes(desired)));
  };
  EXPECT_EQ(compare_set("key", "else", "first"), "else");  // Absent: nothing is stored.
  EXPECT_FALSE(store->check({"key"}));
  EXPECT_EQ(compare_set("key", "", "first"), "first");
  EXPECT_EQ(compare_set("key", "else", "second"), "first");
  EXPECT_EQ(compare_set("key", "first", "second"), "second");
  EXPECT_EQ(text(store->get("key")), "second");
}

TEST_P(C10dStore, KeysComeAndGo) {
  const Client store = client();
  const std::int64_t before = store->getNumKeys();
  store->set("a", bytes("1"));
  store->set("b", bytes("2"));
  EXPECT_TRUE(store->check({"a", "b"}));
  EXPECT_FALSE(store->check({"a", "c"}));
  EXPECT_EQ(store->getNumKeys(), before + 2);
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->deleteKey("a"));
  EXPECT_EQ(store->getNumKeys(), before + 1);
  EXPECT_FALSE(store->check({"a"}));
}

TEST_P(C10dStore, ListsItsKeys) {
  [](auto& store) {
    if constexpr (Listed<decltype(store)>) {
      store.set("a", bytes("1"));
      store.set("folder/b", bytes("2"));
      store.add("c", 1);
      const std::vector<std::string> keys = store.listKeys();
      EXPECT_THAT(keys, testing::IsSupersetOf({"a", "folder/b", "c"}));
      EXPECT_EQ(static_cast<std::int64_t>(keys.size()), store.getNumKeys());
    } else {
      GTEST_SKIP() << "this LibTorch's client cannot";
    }
  }(*client());
}

TEST_P(C10dStore, AppendsAndMovesManyAtOnce) {
  [](auto& store) {
    if constexpr (Extended<decltype(store)>) {
      EXPECT_TRUE(store.hasExtendedApi());
      store.append("log", bytes("one "));
      store.append("log", bytes("two"));
      EXPECT_EQ(text(store.get("log")), "one two");
      std::vector<std::string> keys;
      std::vector<Bytes> values;
      for (int index = 0; index < 1000; ++index) {
        keys.push_back("many/" + std::to_string(index));
        values.push_back(bytes(std::string(static_cast<std::size_t>(index), 'x')));
      }
      store.multiSet(keys, values);
      EXPECT_EQ(store.multiGet(keys), values);
      EXPECT_EQ(store.multiGet({}), std::vector<Bytes>{});
    } else {
      GTEST_SKIP() << "this LibTorch's client cannot";
    }
  }(*client());
}

TEST_P(C10dStore, WaitsUntilAllKeysAreThere) {
  const Client waiter = client();
  auto waiting = std::async(std::launch::async, [&] {
    waiter->wait({"first", "second"});
    return text(waiter->get("second"));
  });
  auto getting = std::async(std::launch::async, [&] { return text(client()->get("second")); });
  const Client setter = client();
  setter->set("first", bytes("1"));
  setter->set("second", bytes("2"));
  EXPECT_EQ(waiting.get(), "2");
  EXPECT_EQ(getting.get(), "2");
}

// Since 2.x a client takes back a wait that it gives up, and goes on with its connection.
TEST_P(C10dStore, AWaitThatTimesOutIsTakenBack) {
  const Client first = client();
  const std::string message = message_of([&] { first->wait({"never", "come"}, 50ms); });
  EXPECT_THAT(message, testing::ContainsRegex("[Tt]ime.?[Oo]ut"));
  [](auto& store, const Client& other) {
    if constexpr (Extended<decltype(store)>) {
      // An answer to the wait that was given up would be taken for the next one's.
      other->set("never", bytes("1"));
      other->set("come", bytes("2"));
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(store.add("count", 1), round + 1);
        EXPECT_THAT(message_of([&] { store.wait({"nowhere"}, 1ms); }), HasSubstr("timeout"));
        EXPECT_EQ(text(store.get("never")), "1");
      }
      store.wait({"never", "come"}, 60s);
      store.setTimeout(20ms);
      EXPECT_THAT(message_of([&] { store.get("nothing"); }), HasSubstr("timeout"));
      EXPECT_EQ(text(store.get("come")), "2");
    }
  }(*first, client());
}

// A key that comes at the moment in which the client gives up: both may be first.
TEST_P(C10dStore, CancelsThatCrossAnAnswer) {
  [](auto& store, auto& other) {
    if constexpr (Extended<decltype(store)>) {
      for (int round = 0; round < 100; ++round) {
        const std::string key = "round" + std::to_string(round);
        std::thread setter([&] { other.set(key, bytes(key)); });
        try {
          store.wait({key}, 1ms);
        } catch (const std::exception&) {
        }
        setter.join();
        ASSERT_EQ(text(store.get(key)), key);
      }
    } else {
      GTEST_SKIP() << "this LibTorch's client does not cancel";
    }
  }(*client(), *client());
}

TEST_P(C10dStore, WorkersWaitForEachOther) {
  constexpr std::size_t kWorkers = 8;
  std::vector<std::future<void>> workers;
  for (std::size_t worker = 0; worker < kWorkers; ++worker) {
    workers.push_back(std::async(std::launch::async, [&] {
      auto options = options_for(port(), 60s);
      options.waitWorkers = true;
      options.numWorkers = kWorkers;
      const auto store = c10::make_intrusive<TCPStore>("127.0.0.1", options);
      store->waitForWorkers();
    }));
  }
  for (auto& worker : workers) worker.get();
}

TEST_P(C10dStore, ManyClientsAtOnce) {
  constexpr int kClients = 64;
  constexpr int kRounds = 20;
  std::vector<std::future<void>> all;
  for (int number = 0; number < kClients; ++number) {
    all.push_back(std::async(std::launch::async, [this, number] {
      const Client store = client();
      const std::string mine = std::to_string(number);
      for (int round = 0; round < kRounds; ++round) {
        const std::string prefix = std::to_string(round) + "/";
        store->set(prefix + mine, bytes(mine));
        if (store->add(prefix + "count", 1) == kClients) store->set(prefix + "all", {});
        store->wait({prefix + "all"});
        const int neighbour = (number + round) % kClients;
        EXPECT_EQ(text(store->get(prefix + std::to_string(neighbour))), std::to_string(neighbour));
      }
    }));
  }
  for (auto& one : all) one.get();
  EXPECT_EQ(text(client()->get("19/count")), "64");
}

TEST_P(C10dStore, LargeValues) {
  const Client store = client();
  Bytes large(8 << 20);  // What PyTorch's own server allows.
  for (std::size_t place = 0; place < large.size(); ++place) {
    large[place] = static_cast<std::uint8_t>(place * 7 + place / 4096);
  }
  for (int number = 0; number < 4; ++number) store->set("l" + std::to_string(number), large);
  EXPECT_EQ(store->get("l3"), large);
  [&](auto& extended) {
    if constexpr (Extended<decltype(extended)>) {
      EXPECT_EQ(extended.multiGet({"l0", "l2"}), (std::vector<Bytes>{large, large}));
    }
    if constexpr (Split<decltype(extended)>) {  // A SET in two pieces, a second apart or so.
      extended._splitSet("split", bytes("a value in pieces"));
      EXPECT_EQ(text(extended.get("split")), "a value in pieces");
    }
  }(*store);
}

TEST_P(C10dStore, PrefixesKeepApart) {
  const Client store = client();
  const auto prefixed = [&](const char* prefix) {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  const auto one = prefixed("one");
  const auto two = prefixed("two");
  const std::int64_t before = store->getNumKeys();
  EXPECT_EQ(one->add("key", 1), 1);
  EXPECT_EQ(two->add("key", 5), 5);
  EXPECT_EQ(one->add("key", 1), 2);
  EXPECT_EQ(text(store->get("one/key")), "2");
  EXPECT_TRUE(two->deleteKey("key"));
  EXPECT_TRUE(one->check({"key"}));
  EXPECT_FALSE(two->check({"key"}));
  EXPECT_GT(store->getNumKeys(), before);
  const auto nested = c10::make_intrusive<c10d::PrefixStore>("inner", one);
  nested->set("key", bytes("deep"));
  EXPECT_EQ(text(store->get("one/inner/key")), "deep");
  [](auto& prefix, auto& plain) {
    if constexpr (Extended<decltype(prefix)>) {
      prefix.multiSet({"x", "y"}, {bytes("1"), bytes("2")});
      prefix.append("x", bytes("0"));
      EXPECT_THAT(plain.multiGet({"one/x", "one/y"}), ElementsAre(bytes("10"), bytes("2")));
    }
  }(*one, *store);
}

TEST_P(C10dStore, ClonesAreClientsOfTheirOwn) {
  [](auto& store) {
    if constexpr (Cloned<decltype(store)>) {
      const auto clone = store.clone();
      auto waiting = std::async(std::launch::async, [&] { return text(clone->get("late")); });
      EXPECT_EQ(store.add("meanwhile", 1), 1);  // While the other one waits.
      clone->getTimeout();
      store.set("late", bytes("came"));
      EXPECT_EQ(waiting.get(), "came");
      EXPECT_EQ(clone->add("meanwhile", 1), 2);
    } else {
      GTEST_SKIP() << "this LibTorch's client cannot";
    }
  }(*client());
}

TEST_P(C10dStore, Barrier) {
  static constexpr int kClients = 6;
  [](auto& first, const auto& make) {
    if constexpr (HasBarrier<decltype(first)>) {
      for (const char* key : {"one", "two"}) {
        std::atomic<int> come = 0;
        std::vector<std::future<void>> all;
        for (int number = 0; number < kClients; ++number) {
          all.push_back(std::async(std::launch::async, [&] {
            const auto store = make();
            ++come;
            store->barrier(key, kClients, 60s);
            EXPECT_EQ(come, kClients);
          }));
        }
        for (auto& one : all) one.get();
      }
      // One that stays alone gives up, and its connection goes on.
      EXPECT_THAT(message_of([&] { first.barrier("alone", 2, 50ms); }), HasSubstr("timeout"));
      EXPECT_EQ(first.add("count", 1), 1);
      // It has been counted, as PyTorch's server does.
      make()->barrier("alone", 2, 60s);
    } else {
      GTEST_SKIP() << "this LibTorch's client cannot";
    }
  }(*client(), [this] { return client(); });
}

INSTANTIATE_TEST_SUITE_P(Servers, C10dStore, testing::Values(Which::kOurs, Which::kPyTorchs),
                         [](const auto& which) {
                           return which.param == Which::kOurs ? "Ours" : "PyTorchs";
                         });

// PyTorch's own server has queues with libuv only.
class C10dQueues : public testing::Test {
 protected:
  Client client(std::chrono::milliseconds timeout = 60s) const {
    auto result = c10::make_intrusive<TCPStore>("127.0.0.1", options_for(server_.port(), timeout));
#if TORCH_VERSION_MAJOR >= 2
    uses_lib_uv(*result) = true;
#endif
    return result;
  }

 private:
  ServerThread server_;
};

TEST_F(C10dQueues, FirstInFirstOut) {
  [](auto& store) {
    if constexpr (Queued<decltype(store)>) {
      EXPECT_EQ(store.queueLen("q"), 0);
      for (const char* value : {"a", "b", ""}) store.queuePush("q", bytes(value));
      EXPECT_EQ(store.queueLen("q"), 3);
      EXPECT_EQ(text(store.queuePop("q", true)), "a");
      EXPECT_EQ(text(store.queuePop("q", false)), "b");
      EXPECT_EQ(text(store.queuePop("q", false)), "");
      EXPECT_EQ(store.queueLen("q"), 0);
      EXPECT_THAT(message_of([&] { store.queuePop("q", false); }), HasSubstr("queue is empty"));
      store.queuePush("other", bytes("x"));
      EXPECT_EQ(store.queueLen("q"), 0);
    } else {
      GTEST_SKIP() << "this LibTorch's client has no queues";
    }
  }(*client());
}

TEST_F(C10dQueues, APopWaitsAndGivesUp) {
  [](auto& store, auto& other) {
    if constexpr (Queued<decltype(store)>) {
      store.setTimeout(50ms);
      EXPECT_THAT(message_of([&] { store.queuePop("q", true); }), HasSubstr("timeout"));
      store.setTimeout(60s);
      EXPECT_EQ(store.queueLen("q"), 0);  // The connection goes on.
      auto popped = std::async(std::launch::async, [&] { return text(store.queuePop("q", true)); });
      other.queuePush("q", bytes("came"));
      EXPECT_EQ(popped.get(), "came");
    } else {
      GTEST_SKIP() << "this LibTorch's client has no queues";
    }
  }(*client(), *client());
}

TEST_F(C10dQueues, EachValueGoesToOne) {
  [](auto& store, const auto& make) {
    if constexpr (Queued<decltype(store)>) {
      constexpr int kClients = 8;
      constexpr int kValues = 25;
      std::vector<std::future<std::vector<std::string>>> poppers;
      for (int number = 0; number < kClients; ++number) {
        poppers.push_back(std::async(std::launch::async, [&make] {
          const auto prefixed = make();
          std::vector<std::string> values;
          for (int count = 0; count < kValues; ++count) {
            values.push_back(text(prefixed->queuePop("q", true)));
          }
          return values;
        }));
      }
      for (int value = 0; value < kClients * kValues; ++value) {
        store.queuePush("jobs/q", bytes(std::to_string(value)));
      }
      std::set<std::string> all;
      for (auto& popper : poppers) {
        const std::vector<std::string> values = popper.get();
        all.insert(values.begin(), values.end());
      }
      EXPECT_EQ(all.size(), static_cast<std::size_t>(kClients * kValues));
      EXPECT_EQ(store.queueLen("jobs/q"), 0);
    } else {
      GTEST_SKIP() << "this LibTorch's client has no queues";
    }
  }(*client(), [this] { return c10::make_intrusive<c10d::PrefixStore>("jobs", client()); });
}

}  // namespace
}  // namespace ddp::test
