#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "launcher/node/notices.h"

namespace ddp::node {
namespace {

class NoticesTest : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_.reset(ends[0]);
    writer_.reset(ends[1]);
  }

  // Until `size` bytes have come.
  std::string read(std::size_t size) {
    std::string text;
    char buffer[4'096];
    while (text.size() < size) {
      const ssize_t got =
          ::read(reader_.get(), buffer, std::min(sizeof(buffer), size - text.size()));
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

  UniqueFd reader_;
  UniqueFd writer_;
};

TEST_F(NoticesTest, LinesEndWithANewline) {
  Notices notices(writer_.get());
  notices.print("one");
  notices.print("two\nthree\n");
  EXPECT_EQ(read(14), "one\ntwo\nthree\n");
}

TEST_F(NoticesTest, AReaderThatTakesNothingDoesNotHoldUpAndLosesNothing) {
  Notices notices(writer_.get());
  std::string expected;
  for (int i = 0; i < 10'000; ++i) {
    const std::string line = "notice " + std::to_string(i) + std::string(20, '.') + "\n";
    notices.print(line);
    expected += line;
  }
  std::string seen;
  std::thread reader([&] { seen = read(expected.size()); });
  notices.flush();
  reader.join();
  EXPECT_TRUE(seen == expected);
}

TEST_F(NoticesTest, AReaderThatIsGoneIsNoReasonToWait) {
  Notices notices(writer_.get());
  notices.print(std::string(200'000, 'x'));
  reader_.reset();
  notices.flush();
}

}  // namespace
}  // namespace ddp::node
