#include "agent/process/worker_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/process/round_memory.h"
#include "common/wire/frame.h"
#include "common/wire/shm_layout.h"
#include "tests/support/event_loop.h"

namespace ddp::agent {
namespace {

using testing::ElementsAre;

TEST(WorkerChannel, NonsenseClosesItAndAWorkerThatNeverReadsBlocksNobody) {
  asio::io_context io;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd worker(ends[1]);
  int messages = 0;
  const auto channel =
      WorkerChannel::start(io, UniqueFd(ends[0]), [&](const wire::WorkerMessage&) { ++messages; });
  for (int i = 0; i < 20'000; ++i) channel->send(wire::Abort{1, "never read"});
  const std::string nonsense =
      wire::encode_frame(wire::encode(wire::WorkerMessage(wire::Progress{1, 0, 0}))) +
      "\xff\xff\xff\xff and more";
  ASSERT_EQ(::write(worker.get(), nonsense.data(), nonsense.size()),
            static_cast<ssize_t>(nonsense.size()));
  ASSERT_TRUE(test::run_until(io, [&] { return ::send(worker.get(), "x", 1, MSG_NOSIGNAL) < 0; }));
  EXPECT_EQ(messages, 1);
  channel->send(wire::Abort{1, "closed"});
}

// As a worker writes them: frame by frame, the descriptors with the first byte.
void send_with(int socket, const std::string& bytes, const std::vector<int>& descriptors) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  ASSERT_EQ(::sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// However the stream is cut, each snapshot has its own; what belongs to nothing is closed.
TEST(WorkerChannel, SnapshotsHaveTheirDescriptors) {
  asio::io_context io;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd worker(ends[1]);
  std::vector<std::string> got;
  std::shared_ptr<WorkerChannel> channel;
  channel = WorkerChannel::start(io, UniqueFd(ends[0]), [&](const wire::WorkerMessage& message) {
    const auto* snapshot = std::get_if<wire::SubmitSnapshot>(&message);
    if (snapshot == nullptr) return;
    std::string names = snapshot->id;
    if (snapshot->id != "not taken") {
      for (const UniqueFd& fd : channel->take_descriptors()) {
        names += " " + std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get()))
                           .filename()
                           .string();
      }
    }
    got.push_back(names);
  });
  const auto frame = [](const std::string& id, bool locked) {
    return wire::encode_frame(
        wire::encode(wire::WorkerMessage(wire::SubmitSnapshot{id, 1, 1, locked})));
  };
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const std::size_t before = open_descriptors();
  const std::string both = frame("both", true);
  send_with(worker.get(), both.substr(0, 3), {null.get(), zero.get()});
  send_with(worker.get(), both.substr(3) + frame("none", false), {});
  send_with(worker.get(), frame("not taken", false), {null.get()});
  send_with(worker.get(), frame("one", false), {zero.get()});
  ASSERT_TRUE(test::run_until(io, [&] { return got.size() == 4; }));
  EXPECT_THAT(got, testing::ElementsAre("both null zero", "none", "not taken", "one zero"));
  // More at once than any snapshot has: none of them can be trusted.
  send_with(worker.get(), frame("many", true), std::vector<int>(100, null.get()));
  send_with(worker.get(), frame("next", false), {zero.get()});
  ASSERT_TRUE(test::run_until(io, [&] { return got.size() == 6; }));
  EXPECT_EQ(got[4], "many");
  EXPECT_EQ(got[5], "next zero");
  channel->close();
  EXPECT_EQ(open_descriptors(), before - 1) << "but for the channel's";
}

// Whatever stands in the socket, the memory of a new round arrives, with its order and in its turn.
TEST(WorkerChannel, ADescriptorWaitsForRoomAndComesWithItsOrder) {
  asio::io_context io;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd worker(ends[1]);
  const auto channel =
      WorkerChannel::start(io, UniqueFd(ends[0]), [](const wire::WorkerMessage&) {});
  // More than the socket and the backlog take.
  for (int i = 0; i < 20'000; ++i) channel->send(wire::Abort{1, "a reason"});
  {
    auto memory = RoundMemory::create(1, 7);
    ASSERT_TRUE(memory.has_value());
    channel->send(wire::NewRound{7, {{"RANK", "1"}}}, (*memory)->fd());
  }
  wire::FrameDecoder decoder;
  std::vector<std::int64_t> rounds;  // Of descriptors, by the memory behind them.
  std::size_t aborts = 0;
  bool new_round = false;
  ASSERT_TRUE(test::run_until(io, [&] {
    char buffer[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec bytes{buffer, sizeof(buffer)};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = ::recvmsg(worker.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size <= 0) return new_round;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
      UniqueFd memory;
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
      memory.reset(descriptor);
      wire::ShmHeader copy;
      if (::pread(descriptor, &copy, sizeof(copy), 0) == sizeof(copy)) rounds.push_back(copy.round);
      EXPECT_FALSE(new_round);
    }
    decoder.append({buffer, static_cast<std::size_t>(size)});
    for (;;) {
      const auto payload = decoder.next();
      EXPECT_TRUE(payload.has_value());
      if (!payload || !*payload) return new_round;
      const auto order = wire::decode_worker_order(**payload);
      if (std::holds_alternative<wire::Abort>(*order)) ++aborts;
      if (const auto* next = std::get_if<wire::NewRound>(&*order)) {
        new_round = true;
        EXPECT_EQ(next->environment.at("RANK"), "1");
      }
    }
  }));
  EXPECT_THAT(rounds, ElementsAre(7));
  EXPECT_GT(aborts, 100u);
  EXPECT_LT(aborts, 20'000u) << "those that found no room were dropped";
}

}  // namespace
}  // namespace ddp::agent
