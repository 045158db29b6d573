#include "common/wire/task_messages.h"

#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace ddp::wire {
namespace {

template <typename T>
T sent_and_read(const T& message) {
  const auto read = decode_task_message(encode(message));
  EXPECT_TRUE(read) << (read ? "" : read.error().message);
  const T* same = read ? std::get_if<T>(&*read) : nullptr;
  EXPECT_NE(same, nullptr);
  return same != nullptr ? *same : T{};
}

TEST(TaskMessages, ArriveAsTheyWereSent) {
  const std::vector<std::string> strings{"A=1", "", "B=two words\nand a line", "C=\xff\xfe"};
  const auto hello = sent_and_read(TaskHello{3, {0, 17, 255}, strings});
  EXPECT_EQ(hello.local_rank, 3);
  EXPECT_EQ(hello.cpus, (std::vector<int>{0, 17, 255}));
  EXPECT_EQ(hello.environment, strings);
  const auto start = sent_and_read(StartWorker{{"sh", "-c", ""}, strings});
  EXPECT_EQ(start.command, (std::vector<std::string>{"sh", "-c", ""}));
  EXPECT_EQ(start.environment, strings);
  EXPECT_EQ(sent_and_read(WorkerStarted{4711}).pid, 4711);
  const auto failed = sent_and_read(WorkerNotStarted{127, "x: no such program"});
  EXPECT_EQ(failed.status, 127);
  EXPECT_EQ(failed.why, "x: no such program");
  const auto ended = sent_and_read(WorkerEnded{4711, 0, 11, true});
  EXPECT_EQ(ended.pid, 4711);
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.signal, 11);
  EXPECT_TRUE(ended.core_dumped);
  const auto clear = sent_and_read(ClearTask{2, 50, {7, 8}});
  EXPECT_EQ(clear.number, 2);
  EXPECT_EQ(clear.limit_ms, 50);
  EXPECT_EQ(clear.keep, (std::vector<int>{7, 8}));
  EXPECT_TRUE(sent_and_read(TaskCleared{2, true}).complete);
  EXPECT_EQ(sent_and_read(TakeStatus{4711}).pid, 4711);
  EXPECT_EQ(sent_and_read(Dismiss{76}).exit_code, 76);
}

TEST(TaskMessages, OtherBytesAreRefused) {
  using namespace std::string_literals;
  for (const std::string& bytes :
       {""s, "x1\n"s, "h"s, "h\n"s, "h1"s, "hx\n"s, "h99999999999\n"s, "h1\nA=1"s, "e1,2,3\n"s,
        "S2\nsh\0"s, "S0\n"s, "S-1\nsh\0"s, "n1\n"s, "c1\n"s}) {
    const auto read = decode_task_message(bytes);
    ASSERT_FALSE(read) << bytes;
    EXPECT_EQ(read.error().code, Errc::kProtocol);
  }
}

}  // namespace
}  // namespace ddp::wire
