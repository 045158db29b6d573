#include "worker/transport/ucx_inbox.h"

#include <cstring>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/data_streams.h"
#include "worker/transport/ucx_worker.h"

namespace ddp::transport {
namespace {

// UCX may hand over a small message before a larger one that was sent earlier.
class UcxInboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = test::engine_missing(EngineKind::kUcx);
    if (!missing.empty()) GTEST_SKIP() << missing;
    worker_ = std::move(UcxWorker::create()).value();
    inbox_ = std::make_unique<UcxInbox>(*worker_);
  }

  void come(std::uint32_t sequence, std::string text, UcxFrameKind kind = UcxFrameKind::kData) {
    UcxFrame frame;
    frame.kind = kind;
    frame.sequence = sequence;
    EXPECT_EQ(inbox_->on_frame(frame, text.data(), text.size(), 0), UCS_OK);
  }
  std::string receive(std::size_t room) {
    std::string text(room, '?');
    text.resize(inbox_->receive_some(reinterpret_cast<std::byte*>(text.data()), room));
    return text;
  }

  std::shared_ptr<UcxWorker> worker_;
  std::unique_ptr<UcxInbox> inbox_;
};

TEST_F(UcxInboxTest, PutsMessagesBackIntoOrder) {
  come(2, "ef");
  come(3, "", UcxFrameKind::kEnd);
  EXPECT_EQ(receive(10), "");
  come(0, "ab");
  EXPECT_EQ(receive(10), "ab");
  EXPECT_FALSE(inbox_->ended());
  come(1, "cd");
  EXPECT_EQ(receive(3), "cde");
  EXPECT_EQ(receive(10), "f");
  EXPECT_TRUE(inbox_->ended());
  EXPECT_EQ(inbox_->taken(), 6U);
  EXPECT_EQ(inbox_->status(), UCS_OK);
}

TEST_F(UcxInboxTest, RefusesANumberThatNoPeerWouldGive) {
  come(1U << 31, "x");
  EXPECT_NE(inbox_->status(), UCS_OK);
}

}  // namespace
}  // namespace ddp::transport
