// Framed connections, streams, the listener and the timer, over real sockets.
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "common/net/byte_stream.h"
#include "common/net/frame_connection.h"
#include "common/net/listener.h"
#include "common/net/stream_mux.h"
#include "common/net/timer.h"
#include "common/wire/frame.h"
#include "tests/support/event_loop.h"
#include "tests/support/listener.h"
#include "tests/support/raw_client.h"

namespace ddp::net {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using test::run_until;

const std::string kPreamble(wire::kRendezvousPreamble);

using ConnectResult = Result<std::shared_ptr<FrameConnection>>;

class NetTest : public testing::Test {
 protected:
  void SetUp() override {
    listener_ = Listener::open(io_, "127.0.0.1", 0).value();
    listener_->start([this](asio::ip::tcp::socket socket) {
      accepted_.push_back(ByteStream::create(std::move(socket), {}));
    });
  }
  void TearDown() override {
    for (const auto& stream : accepted_) stream->close();
    io_.restart();
    io_.poll();
  }

  ConnectResult connect(const std::string& host, int port, std::chrono::milliseconds timeout) {
    std::optional<ConnectResult> result;
    FrameConnection::connect(io_, host, port, {}, timeout,
                             [&](ConnectResult got) { result.emplace(std::move(got)); });
    EXPECT_FALSE(result) << "called back from inside connect()";
    EXPECT_TRUE(run_until(io_, [&] { return result.has_value(); }));
    return std::move(*result);
  }

  // Both ends of one connection. The accepting end has not read the preamble.
  std::shared_ptr<FrameConnection> connect_pair() {
    std::optional<ConnectResult> result;
    FrameConnection::connect(io_, "127.0.0.1", listener_->port(), {}, 20s,
                             [&](ConnectResult got) { result.emplace(std::move(got)); });
    EXPECT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
    accepted_.back()->send(wire::kRendezvousPreamble);
    EXPECT_TRUE(run_until(io_, [&] { return result.has_value(); }));
    return std::move(*result).value();
  }

  asio::io_context io_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::shared_ptr<ByteStream>> accepted_;
};

// What one end of a connection has been told.
struct Log {
  std::vector<std::string> frames;
  std::vector<Error> ends;
  void attach(FrameConnection& connection) {
    connection.start([this](const std::string& frame) { frames.push_back(frame); },
                     [this](const Error& why) { ends.push_back(why); });
  }
};

// Collects bytes; the other half of a FrameConnection under test.
struct Sink : ByteStream::Handler {
  void on_bytes(std::string_view more) override { bytes += more; }
  void on_closed(const Error& why) override { ends.push_back(why); }
  void on_drained() override { ++drained; }
  std::string bytes;
  std::vector<Error> ends;
  int drained = 0;
};

TEST_F(NetTest, FramesArriveWholeAndInOrderHoweverTheyAreCut) {
  auto connection = connect_pair();
  Log log;
  log.attach(*connection);
  const std::string bytes =
      wire::encode_frame("one") + wire::encode_frame("") + wire::encode_frame("three");
  for (const char byte : bytes) {
    accepted_[0]->send({&byte, 1});
    io_.restart();
    io_.poll();
  }
  ASSERT_TRUE(run_until(io_, [&] { return log.frames.size() == 3; }));
  EXPECT_EQ(log.frames, (std::vector<std::string>{"one", "", "three"}));
  EXPECT_TRUE(log.ends.empty());
  connection->close();
}

TEST_F(NetTest, SendsThePreambleThenFrames) {
  auto connection = connect_pair();
  auto sink = std::make_shared<Sink>();
  accepted_[0]->set_handler(sink);
  connection->send("hello");
  const std::string expected = kPreamble + wire::encode_frame("hello");
  ASSERT_TRUE(run_until(io_, [&] { return sink->bytes.size() >= expected.size(); }));
  EXPECT_EQ(sink->bytes, expected);
  EXPECT_EQ(connection->remote_address(), "127.0.0.1");
  connection->close();
}

TEST_F(NetTest, AdoptDeliversWhatCameBehindThePreamble) {
  test::RawClient client(listener_->port());
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  const std::string frames = wire::encode_frame("a") + wire::encode_frame("b");
  auto connection = FrameConnection::adopt(accepted_[0], frames.substr(0, 7));
  client.send(frames.substr(7));
  Log log;
  log.attach(*connection);
  EXPECT_TRUE(log.frames.empty()) << "called from inside start()";
  ASSERT_TRUE(run_until(io_, [&] { return log.frames.size() == 2; }));
  EXPECT_EQ(log.frames, (std::vector<std::string>{"a", "b"}));
  connection->close();
}

TEST_F(NetTest, AFrameSentBeforeAResetStillArrivesBeforeTheEnd) {
  test::RawClient client(listener_->port());
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  auto connection = FrameConnection::adopt(accepted_[0], "");
  client.send(wire::encode_frame("last words"));
  client.reset();
  Log log;
  log.attach(*connection);
  connection->send("nobody reads this");
  ASSERT_TRUE(run_until(io_, [&] { return !log.ends.empty(); }));
  EXPECT_EQ(log.frames, std::vector<std::string>{"last words"});
  EXPECT_EQ(log.ends[0].code, Errc::kPeerLost);
}

TEST_F(NetTest, TheEndIsToldOnce) {
  auto connection = connect_pair();
  Log log;
  log.attach(*connection);
  io_.restart();
  io_.poll();
  accepted_[0]->close();
  ASSERT_TRUE(run_until(io_, [&] { return !log.ends.empty(); }));
  io_.restart();
  io_.poll();
  EXPECT_EQ(log.ends.size(), 1u);
  EXPECT_EQ(log.ends[0].code, Errc::kPeerLost);
  connection->send("into the void");
  connection->close_after_writes();
  connection->close();
}

TEST_F(NetTest, AfterCloseNothingIsTold) {
  auto connection = connect_pair();
  Log log;
  log.attach(*connection);
  accepted_[0]->send(wire::encode_frame("too late"));
  connection->close();
  ASSERT_TRUE(run_until(io_, [&] {
    io_.poll();
    return true;
  }));
  EXPECT_TRUE(log.frames.empty());
  EXPECT_TRUE(log.ends.empty());
}

TEST_F(NetTest, ACallbackMayCloseItsOwnConnection) {
  auto connection = connect_pair();
  int frames = 0;
  // The callback owns the last reference, so that a careless close() would destroy it while it
  // runs.
  std::weak_ptr<FrameConnection> weak = connection;
  auto token = std::make_shared<int>(7);
  FrameConnection& raw = *connection;
  raw.start(
      [&frames, connection, token](const std::string&) {
        connection->close();
        ++frames;
        EXPECT_EQ(*token, 7);
      },
      [](const Error&) { FAIL() << "told after close()"; });
  connection.reset();
  accepted_[0]->send(wire::encode_frame("x") + wire::encode_frame("y"));
  ASSERT_TRUE(run_until(io_, [&] { return weak.expired(); })) << "callbacks are kept alive";
  EXPECT_EQ(frames, 1);
}

TEST_F(NetTest, BytesThatAreNoFrameEndTheConnection) {
  auto connection = connect_pair();
  Log log;
  log.attach(*connection);
  accepted_[0]->send("\xff\xff\xff\xff");
  ASSERT_TRUE(run_until(io_, [&] { return !log.ends.empty(); }));
  EXPECT_EQ(log.ends[0].code, Errc::kProtocol);
}

// The peer would not take it.
TEST_F(NetTest, AFrameBeyondTheLimitEndsTheConnection) {
  auto connection = connect_pair();
  Log log;
  log.attach(*connection);
  connection->send(std::string(wire::kMaxFrameBytes + 1, 'x'));
  EXPECT_TRUE(log.ends.empty()) << "told from inside send()";
  connection->send("nothing follows");
  ASSERT_TRUE(run_until(io_, [&] { return !log.ends.empty(); }));
  io_.restart();
  io_.poll();
  ASSERT_EQ(log.ends.size(), 1u);
  EXPECT_EQ(log.ends[0].code, Errc::kIo);
  EXPECT_NE(log.ends[0].message.find("16777217 bytes"), std::string::npos) << log.ends[0].message;
  EXPECT_NE(log.ends[0].message.find("16777216"), std::string::npos) << log.ends[0].message;
  test::RawClient client(listener_->port());
  ASSERT_TRUE(run_until(io_, [&] { return accepted_.size() == 2; }));
  auto unstarted = FrameConnection::adopt(accepted_[1], "");
  unstarted->send(std::string(wire::kMaxFrameBytes + 1, 'x'));
  Log later;
  later.attach(*unstarted);
  ASSERT_TRUE(run_until(io_, [&] { return !later.ends.empty(); }));
  EXPECT_EQ(later.ends[0].code, Errc::kIo);
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST_F(NetTest, CloseAfterWritesLosesNothingEvenWithUnreadBytes) {
  auto connection = connect_pair();
  Log log;
  log.attach(*connection);
  const std::string big(4u << 20, 'b');
  accepted_[0]->send(wire::encode_frame(big));  // The other side has this to read.
  for (int i = 0; i < 4; ++i) connection->send(big);
  connection->send("last");
  connection->close_after_writes();
  auto sink = std::make_shared<Sink>();
  accepted_[0]->set_handler(sink);
  const std::size_t expected = kPreamble.size() + 4 * (big.size() + wire::kFrameHeaderBytes) +
                               wire::encode_frame("last").size();
  ASSERT_TRUE(run_until(io_, [&] { return !sink->ends.empty(); }));
  EXPECT_EQ(sink->bytes.size(), expected);
  EXPECT_TRUE(sink->bytes.ends_with(wire::encode_frame("last")));
  ASSERT_TRUE(run_until(io_, [&] { return !log.ends.empty(); }));
  EXPECT_EQ(log.ends[0].code, Errc::kAborted);
  EXPECT_TRUE(log.frames.empty());
}

TEST_F(NetTest, APeerThatDoesNotReadIsCutOffAtTheLimit) {
  test::RawClient client(listener_->port(), 4'096);
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  ByteStream::Options options;
  options.max_queued_bytes = 1u << 20;
  accepted_[0]->set_options(options);
  auto sink = std::make_shared<Sink>();
  accepted_[0]->set_handler(sink);
  const std::string piece(64u << 10, 'x');
  for (int i = 0; i < 1'000 && accepted_[0]->is_open(); ++i) accepted_[0]->send(piece);
  EXPECT_FALSE(accepted_[0]->is_open());
  EXPECT_TRUE(sink->ends.empty()) << "told from inside send()";
  ASSERT_TRUE(run_until(io_, [&] { return !sink->ends.empty(); }));
  EXPECT_EQ(sink->ends[0].code, Errc::kIo);
}

TEST_F(NetTest, TellsWhenTheQueueHasDrained) {
  test::RawClient client(listener_->port());
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  auto sink = std::make_shared<Sink>();
  accepted_[0]->set_handler(sink);
  const std::string bytes(16u << 20, 'x');
  accepted_[0]->send(bytes);
  EXPECT_GT(accepted_[0]->queued_bytes(), 0u);
  std::thread reader([&] { EXPECT_EQ(client.receive(bytes.size()).size(), bytes.size()); });
  EXPECT_TRUE(run_until(io_, [&] { return sink->drained > 0; }));
  EXPECT_EQ(accepted_[0]->queued_bytes(), 0u);
  reader.join();
}

TEST_F(NetTest, APausedStreamIsNotReadUntilItResumes) {
  test::RawClient client(listener_->port());
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  auto sink = std::make_shared<Sink>();
  accepted_[0]->set_handler(sink);
  accepted_[0]->pause_reading();
  client.send("bytes");
  client.close();
  for (int i = 0; i < 20; ++i) io_.run_for(1ms);
  EXPECT_EQ(sink->bytes, "");
  EXPECT_TRUE(sink->ends.empty());
  io_.restart();
  accepted_[0]->resume_reading();
  ASSERT_TRUE(run_until(io_, [&] { return !sink->ends.empty(); }));
  EXPECT_EQ(sink->bytes, "bytes");
}

// Its owner may let go of it while a reader does not read.
TEST_F(NetTest, TheStreamsOfAMuxEndWithIt) {
  auto mux = std::make_unique<StreamMux>(io_, connect_pair());
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Sink>> sinks;
  for (const bool paused : {false, true}) {
    streams.push_back(mux->open());
    sinks.push_back(std::make_shared<Sink>());
    streams.back()->set_handler(sinks.back());
    if (paused) streams.back()->pause_reading();
  }
  mux = nullptr;
  for (const auto& stream : streams) EXPECT_FALSE(stream->is_open());
  for (const auto& sink : sinks) EXPECT_TRUE(sink->ends.empty()) << "told from inside ~StreamMux()";
  streams[1]->resume_reading();
  io_.restart();
  io_.poll();
  for (const auto& sink : sinks) {
    ASSERT_EQ(sink->ends.size(), 1u);
    EXPECT_EQ(sink->ends[0].code, Errc::kPeerLost);
  }
}

TEST_F(NetTest, ConnectTellsARefusedPortFromAForeignOne) {
  const ConnectResult refused = connect("127.0.0.1", test::free_port(), 20s);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kPeerLost);

  const test::ListeningSocket silent;
  const ConnectResult foreign = connect("127.0.0.1", silent.port(), 50ms);
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, Errc::kProtocol);
  EXPECT_NE(
      foreign.error().message.find("127.0.0.1:" + std::to_string(silent.port()) +
                                   " is in use by a program that is not a ddp-run rendezvous"),
      std::string::npos)
      << foreign.error().message;
}

TEST_F(NetTest, ConnectRefusesAWrongAnswerAtItsFirstWrongByte) {
  std::optional<ConnectResult> result;
  FrameConnection::connect(io_, "127.0.0.1", listener_->port(), {}, 20s,
                           [&](ConnectResult got) { result.emplace(std::move(got)); });
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  accepted_[0]->send(kPreamble.substr(0, 2) + "X");
  ASSERT_TRUE(run_until(io_, [&] { return result.has_value(); }));
  EXPECT_EQ(result->error().code, Errc::kProtocol);
}

TEST_F(NetTest, ConnectTakesACloseWithoutAnswerForAServerGoingDown) {
  std::optional<ConnectResult> result;
  FrameConnection::connect(io_, "127.0.0.1", listener_->port(), {}, 20s,
                           [&](ConnectResult got) { result.emplace(std::move(got)); });
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  accepted_[0]->close();
  ASSERT_TRUE(run_until(io_, [&] { return result.has_value(); }));
  EXPECT_EQ(result->error().code, Errc::kPeerLost);
}

TEST_F(NetTest, AnAttemptEndsWithItsEventLoop) {
  const auto owned = std::make_shared<int>();
  for (const bool is_connected : {false, true}) {
    auto io = std::make_unique<asio::io_context>(1);
    FrameConnection::connect(*io, "127.0.0.1", listener_->port(), {}, 20s,
                             [owned](const ConnectResult&) {});
    if (is_connected) {
      ASSERT_TRUE(run_until(io_, [&] { return io->poll() == 0 && !accepted_.empty(); }));
    }
    io.reset();
    EXPECT_EQ(owned.use_count(), 1) << is_connected;
  }
}

// As a later release may answer.
TEST_F(NetTest, AnotherVersionOfTheProtocolIsNamedWithARemedy) {
  for (const bool has_token : {false, true}) {
    std::optional<ConnectResult> result;
    FrameConnection::connect(io_, "127.0.0.1", listener_->port(),
                             {.token = Secret(has_token ? "a secret" : ""), .job_id = "job"}, 20s,
                             [&](ConnectResult got) { result.emplace(std::move(got)); });
    ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
    accepted_.back()->send(std::string(wire::kAnyPreamble) + "\x03");
    ASSERT_TRUE(run_until(io_, [&] { return result.has_value(); }));
    ASSERT_FALSE(*result);
    EXPECT_NE(result->error().message.find("version 3"), std::string::npos)
        << result->error().message;
    EXPECT_NE(result->error().message.find("install the same release"), std::string::npos);
    accepted_.clear();
  }
}

TEST_F(NetTest, ConnectResolvesNamesAndNamesTheOneThatDoesNot) {
  std::optional<ConnectResult> result;
  FrameConnection::connect(io_, "localhost", listener_->port(), {}, 20s,
                           [&](ConnectResult got) { result.emplace(std::move(got)); });
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  accepted_[0]->send(wire::kRendezvousPreamble);
  ASSERT_TRUE(run_until(io_, [&] { return result.has_value(); }));
  ASSERT_TRUE(*result) << result->error().message;
  (**result)->close();

  const ConnectResult unknown = connect("no-such-host.invalid", 1, 20s);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Errc::kNotFound);
  EXPECT_NE(unknown.error().message.find("no-such-host.invalid"), std::string::npos);
}

TEST_F(NetTest, ATakenPortIsNamedWithARemedy) {
  const auto second = Listener::open(io_, "127.0.0.1", listener_->port());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kExists);
  EXPECT_NE(second.error().message.find("127.0.0.1:" + std::to_string(listener_->port())),
            std::string::npos)
      << second.error().message;
  EXPECT_EQ(Listener::open(io_, "", listener_->port()).error().code, Errc::kExists);
}

TEST_F(NetTest, AnAddressThatCannotBeListenedOnIsAnInvalidArgument) {
  for (const char* const address : {"localhost", "256.0.0.1", "192.0.2.1"}) {
    const auto listener = Listener::open(io_, address, 0);
    ASSERT_FALSE(listener) << address;
    EXPECT_EQ(listener.error().code, Errc::kInvalidArgument) << listener.error().message;
  }
  EXPECT_EQ(Listener::open(io_, "", 65'536).error().code, Errc::kInvalidArgument);
}

// A daemon that is started again on its endpoint must get it, although connections of the old one
// linger in TIME_WAIT.
TEST_F(NetTest, APortIsTakenAgainAtOnce) {
  const int port = listener_->port();
  test::RawClient client(port);
  ASSERT_TRUE(run_until(io_, [&] { return !accepted_.empty(); }));
  accepted_[0]->close();
  listener_.reset();
  EXPECT_TRUE(client.is_closed_by_peer());
  client.close();
  const auto again = Listener::open(io_, "127.0.0.1", port);
  EXPECT_TRUE(again) << again.error().message;
}

TEST_F(NetTest, AllAddressesMeansIPv4AndIPv6) {
  auto listener = Listener::open(io_, "", 0).value();
  std::vector<std::string> from;
  listener->start([&](asio::ip::tcp::socket socket) {
    auto stream = ByteStream::create(std::move(socket), {});
    from.push_back(stream->remote_address());
    stream->close();
  });
  const test::RawClient client(listener->port());
  ASSERT_TRUE(run_until(io_, [&] { return !from.empty(); }));
  EXPECT_EQ(from[0], "127.0.0.1") << "in dotted form";
}

TEST(TimerTest, ReplacedAndCancelledCallbacksNeverRun) {
  asio::io_context io;
  Timer timer(io);
  std::vector<int> ran;
  timer.after(0ms, [&] { ran.push_back(1); });
  std::this_thread::sleep_for(2ms);  // sleep: its time has come, the loop has not run
  timer.after(1ms, [&] { ran.push_back(2); });
  ASSERT_TRUE(run_until(io, [&] { return !ran.empty(); }));
  EXPECT_EQ(ran, std::vector<int>{2});
  timer.after(0ms, [&] { ran.push_back(3); });
  timer.cancel();
  io.restart();
  io.run();
  EXPECT_EQ(ran, std::vector<int>{2});
  {
    Timer gone(io);
    gone.after(0ms, [&] { ran.push_back(4); });
  }
  io.restart();
  io.run();
  EXPECT_EQ(ran, std::vector<int>{2});
}

TEST(TimerTest, ACallbackMaySetOrDestroyItsTimer) {
  asio::io_context io;
  auto timer = std::make_unique<Timer>(io);
  int ran = 0;
  timer->after(0ms, [&] {
    ++ran;
    timer->after(0ms, [&] {
      ++ran;
      timer.reset();
    });
  });
  io.run();
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace ddp::net
