// Poller: which events are delivered to whom, and when delivery ends.
#include "common/net/poller.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

#include <asio/io_context.hpp>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"

namespace ddp::test {
namespace {

using net::Poller;

// Calls back for every report.
struct Told : Poller::Watcher {
  explicit Told(std::function<void(bool, bool)> callback) : call(std::move(callback)) {}
  void on_ready(bool readable, bool writable) override { call(readable, writable); }
  std::function<void(bool, bool)> call;
};

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void write_byte(const UniqueFd& fd) { EXPECT_EQ(::write(fd.get(), "x", 1), 1); }

TEST(PollerTest, RunReturnsWhenNothingIsWatchedAndServesAgain) {
  asio::io_context io;
  Poller& poller = Poller::of(io);
  EXPECT_EQ(&poller, &Poller::of(io));
  const auto [mine, other] = socket_pair();
  for (int turn = 0; turn < 3; ++turn) {
    int told = 0;
    poller.watch(mine.get(), std::make_shared<Told>([&](bool readable, bool writable) {
                   EXPECT_TRUE(readable);
                   EXPECT_FALSE(writable);
                   char byte = 0;
                   EXPECT_EQ(::read(mine.get(), &byte, 1), 1);
                   if (++told == 2) return poller.forget(mine.get());
                   write_byte(other);
                 }),
                 {.read = true});
    write_byte(other);
    io.restart();
    io.run();
    EXPECT_EQ(told, 2);
  }
}

TEST(PollerTest, SaysAgainWhatWasNotDealtWith) {
  asio::io_context io;
  Poller& poller = Poller::of(io);
  const auto [mine, other] = socket_pair();
  int told = 0;
  poller.watch(mine.get(), std::make_shared<Told>([&](bool, bool) {
                 if (++told == 5) poller.forget(mine.get());
               }),
               {.read = true});
  write_byte(other);
  io.run();
  EXPECT_EQ(told, 5);
}

TEST(PollerTest, WhoIsForgottenWithinABatchIsNotTold) {
  asio::io_context io;
  Poller& poller = Poller::of(io);
  const auto [first, first_other] = socket_pair();
  const auto [second, second_other] = socket_pair();
  int told = 0;
  const auto end_both = [&](bool, bool) {
    ++told;
    poller.forget(first.get());
    poller.forget(second.get());
  };
  poller.watch(first.get(), std::make_shared<Told>(end_both), {.read = true});
  poller.watch(second.get(), std::make_shared<Told>(end_both), {.read = true});
  write_byte(first_other);
  write_byte(second_other);
  io.run();
  EXPECT_EQ(told, 1);
}

// A report that was fetched for a descriptor is not one for its number's next use.
TEST(PollerTest, TheNextUseOfANumberHearsNothingOfTheLast) {
  asio::io_context io;
  Poller& poller = Poller::of(io);
  auto [first, first_other] = socket_pair();
  auto [second, second_other] = socket_pair();
  const auto [silent, silent_other] = socket_pair();
  int of_the_new = 0;
  const auto replace = [&](UniqueFd& other_one) {
    const int number = other_one.get();
    poller.forget(number);
    ASSERT_EQ(::dup3(silent.get(), number, O_CLOEXEC), number);
    poller.watch(number, std::make_shared<Told>([&](bool, bool) { ++of_the_new; }), {.read = true});
  };
  // Whichever comes first in the batch replaces the other.
  poller.watch(first.get(), std::make_shared<Told>([&](bool, bool) {
                 poller.forget(first.get());
                 replace(second);
               }),
               {.read = true});
  poller.watch(second.get(), std::make_shared<Told>([&](bool, bool) {
                 poller.forget(second.get());
                 replace(first);
               }),
               {.read = true});
  write_byte(first_other);
  write_byte(second_other);
  io.run_one();
  EXPECT_EQ(of_the_new, 0);
  poller.forget(first.get());
  poller.forget(second.get());
}

TEST(PollerTest, HoldsAWatcherUntilItIsForgottenOrTheContextEnds) {
  std::weak_ptr<Told> weak;
  const auto [mine, other] = socket_pair();
  {
    asio::io_context io;
    auto watcher = std::make_shared<Told>([](bool, bool) {});
    weak = watcher;
    Poller::of(io).watch(mine.get(), std::move(watcher), {.read = true, .write = true});
    EXPECT_FALSE(weak.expired());
    Poller::of(io).forget(mine.get());
    EXPECT_TRUE(weak.expired());
    watcher = std::make_shared<Told>([](bool, bool) {});
    weak = watcher;
    Poller::of(io).watch(mine.get(), std::move(watcher), {.read = true});
  }
  EXPECT_TRUE(weak.expired());
}

TEST(PollerTest, TheEndOfAPeerIsToldToReadersAndWriters) {
  for (const Poller::Interest interest : {Poller::Interest{true, false}, {false, true}}) {
    asio::io_context io;
    Poller& poller = Poller::of(io);
    auto [mine, other] = socket_pair();
    other.reset();
    int told = 0;
    poller.watch(mine.get(), std::make_shared<Told>([&](bool readable, bool writable) {
                   EXPECT_EQ(readable, interest.read);
                   EXPECT_EQ(writable, interest.write);
                   ++told;
                   poller.forget(mine.get());
                 }),
                 interest);
    io.run();
    EXPECT_EQ(told, 1);
  }
}

}  // namespace
}  // namespace ddp::test
