#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "tests/support/data_streams.h"
#include "tests/support/process.h"

namespace ddp {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

std::string name_of_param(const ::testing::TestParamInfo<EngineKind>& info) {
  return name_of(info.param);
}

// Byte i of every stream.
std::byte byte_at(std::size_t i) { return static_cast<std::byte>((i * 2654435761U) >> 13); }

// Sleeps as Transport does until something may have changed. Fails the test if nobody wakes it.
void sleep_until_ready(transport::DataStream& stream) {
  pollfd entries[transport::DataStream::kPollEntries];
  const int count = stream.poll_entries(entries);
  ASSERT_GT(::poll(entries, static_cast<nfds_t>(count), 30'000), 0) << "nobody woke the sleeper";
}

// Moves all bytes; false once the stream fails.
bool send_all_of(transport::DataStream& stream, const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    stream.clear_wants();
    const ssize_t moved = stream.send_some(data, bytes);
    if (moved < 0) return false;
    if (moved == 0) sleep_until_ready(stream);
    data += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

bool receive_all_of(transport::DataStream& stream, std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    stream.clear_wants();
    const ssize_t moved = stream.receive_some(data, bytes);
    if (moved < 0) return false;
    if (moved == 0) sleep_until_ready(stream);
    data += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

// Sizes of pieces of a stream, from one byte to several large messages.
std::vector<std::size_t> piece_sizes(std::uint64_t seed, std::size_t total) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> sizes;
  while (total > 0) {
    const std::size_t limit = std::size_t{1} << (random() % 22);
    sizes.push_back(std::min(total, 1 + random() % limit));
    total -= sizes.back();
  }
  return sizes;
}

// Sends `total` bytes in pieces of random sizes, each from one buffer that is spoiled as soon as
// its bytes count as moved.
void send_pieces(transport::DataStream& stream, std::uint64_t seed, std::size_t total) {
  Bytes buffer(std::size_t{4} << 20);
  std::size_t position = 0;
  for (const std::size_t size : piece_sizes(seed, total)) {
    for (std::size_t i = 0; i < size; ++i) buffer[i] = byte_at(position + i);
    ASSERT_TRUE(send_all_of(stream, buffer.data(), size)) << stream.how();
    std::fill_n(buffer.begin(), size, std::byte{0xEE});
    position += size;
  }
}

void receive_pieces(transport::DataStream& stream, std::uint64_t seed, std::size_t total) {
  Bytes buffer(std::size_t{4} << 20);
  std::size_t position = 0;
  for (const std::size_t size : piece_sizes(seed, total)) {
    ASSERT_TRUE(receive_all_of(stream, buffer.data(), size)) << stream.how();
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_EQ(buffer[i], byte_at(position + i)) << "byte " << position + i;
    position += size;
  }
}

class DataStreamTest : public ::testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    const std::string missing = test::engine_missing(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_P(DataStreamTest, BytesArriveInOrderWhateverThePieces) {
  auto pair = test::make_stream_pair(GetParam());
  const std::uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  constexpr std::size_t kTotal = 40 << 20;
  std::thread sending([&] { send_pieces(*pair.one, seed, kTotal); });
  receive_pieces(*pair.other, seed + 1, kTotal);
  if (HasFatalFailure()) pair.other->close();  // The sender would wait for ever.
  sending.join();
}

// Both ends send before they receive, and the same pieces, as exchanges do.
TEST_P(DataStreamTest, BothDirectionsAtOnce) {
  auto pair = test::make_stream_pair(GetParam());
  constexpr std::size_t kPiece = 1 << 20;
  const auto exchange = [](transport::DataStream& stream) {
    Bytes out(kPiece);
    Bytes in(kPiece);
    for (std::size_t i = 0; i < kPiece; ++i) out[i] = byte_at(i);
    for (int round = 0; round < 10; ++round) {
      std::size_t sent = 0;
      std::size_t received = 0;
      while (sent < kPiece || received < kPiece) {
        stream.clear_wants();
        const ssize_t gone = sent < kPiece ? stream.send_some(&out[sent], kPiece - sent) : 0;
        const ssize_t come =
            received < kPiece ? stream.receive_some(&in[received], kPiece - received) : 0;
        ASSERT_TRUE(gone >= 0 && come >= 0) << stream.how();
        sent += static_cast<std::size_t>(gone);
        received += static_cast<std::size_t>(come);
        if (gone + come == 0) sleep_until_ready(stream);
      }
      ASSERT_EQ(std::memcmp(in.data(), out.data(), kPiece), 0) << "round " << round;
    }
  };
  const auto exchange_or_close = [&](transport::DataStream& stream) {
    exchange(stream);
    if (HasFatalFailure()) stream.close();  // The other end would wait for ever.
  };
  std::thread one([&] { exchange_or_close(*pair.one); });
  exchange_or_close(*pair.other);
  one.join();
}

TEST_P(DataStreamTest, ASenderWaitsForAReceiverThatDoesNotRead) {
  auto pair = test::make_stream_pair(GetParam());
  for (const std::size_t piece : {std::size_t{1000}, std::size_t{300'000}}) {
    Bytes buffer(piece, std::byte{7});
    std::size_t sent = 0;
    std::size_t within = 0;
    pollfd entry{};
    // The receiver's engine works, but nobody takes the bytes.
    for (int blocked = 0; blocked < 200 && sent < (std::size_t{64} << 20);) {
      const ssize_t moved = pair.one->send_some(&buffer[within], piece - within);
      ASSERT_GE(moved, 0) << pair.one->how();
      (void)pair.other->idle_poll_entries(&entry);
      blocked = moved == 0 ? blocked + 1 : 0;
      sent += static_cast<std::size_t>(moved);
      within = (within + static_cast<std::size_t>(moved)) % piece;
    }
    EXPECT_LT(sent, std::size_t{16} << 20) << "pieces of " << piece;
    // Once it reads, the rest of the piece goes through.
    std::thread reading([&] {
      Bytes got(sent + (within > 0 ? piece - within : 0));
      EXPECT_TRUE(receive_all_of(*pair.other, got.data(), got.size()));
      EXPECT_EQ(std::count(got.begin(), got.end(), std::byte{7}),
                static_cast<std::ptrdiff_t>(got.size()));
    });
    if (within > 0) {
      EXPECT_TRUE(send_all_of(*pair.one, &buffer[within], piece - within));
    }
    // The sender's engine has work left until all has come.
    std::thread idling([&] { (void)pair.one->idle_poll_entries(&entry); });
    idling.join();
    reading.join();
  }
}

TEST_P(DataStreamTest, ASleeperIsWoken) {
  auto pair = test::make_stream_pair(GetParam());
  std::byte byte{};
  pair.other->clear_wants();
  ASSERT_EQ(pair.other->receive_some(&byte, 1), 0);
  EXPECT_TRUE(pair.other->wants_data());
  std::thread sending([&] {
    const std::byte sent{42};
    EXPECT_TRUE(send_all_of(*pair.one, &sent, 1));
  });
  EXPECT_TRUE(receive_all_of(*pair.other, &byte, 1));
  EXPECT_EQ(byte, std::byte{42});
  sending.join();
}

TEST_P(DataStreamTest, WhatWasSentBeforeAnOrderlyEndArrives) {
  auto pair = test::make_stream_pair(GetParam());
  // In pieces that an engine may copy, so that all are on their way before anybody reads.
  constexpr std::size_t kPiece = 30'000;
  // A socket pair holds less than the window of UcxStream, which is more than its network holds.
  const Bytes sent((GetParam() == EngineKind::kTcp ? 4 : 30) * kPiece, std::byte{5});
  for (std::size_t at = 0; at < sent.size(); at += kPiece)
    ASSERT_TRUE(send_all_of(*pair.one, &sent[at], kPiece));
  std::thread sending([&] { pair.one.reset(); });
  Bytes got(sent.size());
  EXPECT_TRUE(receive_all_of(*pair.other, got.data(), got.size()));
  EXPECT_EQ(got, sent);
  std::byte byte{};
  EXPECT_FALSE(receive_all_of(*pair.other, &byte, 1));
  sending.join();
  EXPECT_EQ(pair.other->how(), "it closed the connection");
  EXPECT_EQ(pair.other->send_some(&byte, 1), -1);
}

TEST_P(DataStreamTest, AnEndInTheMiddleIsAFailure) {
  auto pair = test::make_stream_pair(GetParam());
  auto big = std::make_unique<Bytes>(std::size_t{8} << 20);
  ASSERT_GE(pair.one->send_some(big->data(), big->size()), 0);
  Bytes got(big->size());
  ASSERT_GE(pair.other->receive_some(got.data(), got.size()), 0);
  pair.one->close();
  // close() lets go of the memory: a sanitizer or a fault would tell otherwise.
  big.reset();
  EXPECT_EQ(pair.one->send_some(got.data(), 1), -1);
  Bytes rest(std::size_t{8} << 20);
  const TimePoint limit = Clock::now() + seconds(30);
  while (pair.other->receive_some(rest.data(), rest.size()) >= 0 && Clock::now() < limit) {
    pair.other->clear_wants();
    std::this_thread::yield();
  }
  EXPECT_FALSE(pair.other->how().empty());
}

// What comes while its rank is busy with another link of the same engine must not be slept through.
TEST_P(DataStreamTest, StreamsOfOneEngineDoNotMissEachOthersNews) {
  test::keep_ucx_to_tcp();
  auto engine = std::move(transport::make_data_engine(GetParam())).value();
  std::vector<UniqueFd> far;
  std::vector<std::unique_ptr<transport::DataStream>> near;
  for (int i = 0; i < 2; ++i) {
    auto [one, other] = test::socket_pair();
    near.push_back(engine->open_stream(std::move(one)));
    far.push_back(std::move(other));
  }
  std::vector<std::unique_ptr<transport::DataStream>> peers(2);
  std::thread peer([&] {
    for (std::size_t i = 0; i < 2; ++i) peers[i] = test::make_stream(GetParam(), std::move(far[i]));
  });
  for (auto& stream : near) ASSERT_TRUE(stream->establish(Clock::now() + seconds(30)));
  peer.join();
  std::byte byte{};
  ASSERT_EQ(near[1]->receive_some(&byte, 1), 0);
  ASSERT_TRUE(send_all_of(*peers[1], &byte, 1));
  const TimePoint busy_until = Clock::now() + std::chrono::milliseconds(50);
  pollfd entry{};
  while (Clock::now() < busy_until) {
    ASSERT_EQ(near[0]->receive_some(&byte, 1), 0);
    (void)near[0]->idle_poll_entries(&entry);
  }
  sleep_until_ready(*near[1]);
  EXPECT_TRUE(receive_all_of(*near[1], &byte, 1));
  std::thread ending([&] { peers.clear(); });
  near.clear();
  ending.join();
}

// The peer that TheKillOfThePeerIsSeen runs: sends until it is killed.
TEST_P(DataStreamTest, DISABLED_Peer) {
  auto stream = test::make_stream(GetParam(), UniqueFd(std::stoi(std::getenv("DDP_TEST_STREAM"))));
  Bytes buffer(std::size_t{1} << 20);
  while (send_all_of(*stream, buffer.data(), buffer.size())) {
  }
}

TEST_P(DataStreamTest, TheKillOfThePeerIsSeen) {
  auto [own, theirs] = test::socket_pair();
  test::ProcessOptions options;
  options.environment["DDP_TEST_STREAM"] = std::to_string(theirs.get());
  options.inherited = {theirs.get()};
  test::Process peer(test::this_program(std::string("Engines/DataStreamTest.DISABLED_Peer/") +
                                        name_of(GetParam())),
                     options);
  theirs.reset();
  auto stream = test::make_stream(GetParam(), std::move(own));
  Bytes buffer(std::size_t{1} << 20);
  EXPECT_TRUE(receive_all_of(*stream, buffer.data(), buffer.size()));
  peer.kill(SIGKILL);
  const TimePoint killed = Clock::now();
  while (receive_all_of(*stream, buffer.data(), buffer.size())) {
  }
  EXPECT_LT(Clock::now() - killed, seconds(20));
  EXPECT_THAT(stream->how(), ::testing::Not(::testing::IsEmpty()));
  std::cout << "it says: " << stream->how() << "\n";
  EXPECT_EQ(peer.wait(), 128 + SIGKILL) << peer.err();
}

INSTANTIATE_TEST_SUITE_P(Engines, DataStreamTest,
                         ::testing::Values(EngineKind::kTcp, EngineKind::kUcx), name_of_param);

TEST(DataEngine, IsChosenByDdpLink) {
  EXPECT_EQ(*engine_of({}), EngineKind::kTcp);
  EXPECT_EQ(*engine_of(""), EngineKind::kTcp);
  EXPECT_EQ(*engine_of("tcp"), EngineKind::kTcp);
  EXPECT_EQ(*engine_of("ucx"), EngineKind::kUcx);
  EXPECT_TRUE(engine_of("auto"));
  const auto wrong = engine_of("UCX ");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "DDP_LINK=UCX : expected tcp, ucx or auto");
}

}  // namespace
}  // namespace ddp
