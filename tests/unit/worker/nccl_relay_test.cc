#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/inproc.h"
#include "tests/support/nccl_world.h"
#include "worker/nccl/rendezvous.h"
#include "worker/runtime/group.h"

// How a failure reaches the other ranks through the store alone, as it does between processes.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::control;
using test::NcclWorld;

class NcclRelay : public test::StandinTest {
 protected:
  // Every rank for itself, but for the store.
  test::Tweak apart() {
    return [this](NcclGroupOptions& options) {
      options.on_abort = nullptr;
      options.abort_store = store_;
      options.abort_interval = milliseconds(20);
    };
  }
  std::string failure_of(ProcessGroup& group) {
    try {
      for (;;) group.barrier()->wait();
    } catch (const CollectiveError& error) {
      return error.what();
    }
  }

  std::shared_ptr<const NcclLibrary> library_ = test::standin_library();
  std::shared_ptr<test::HashStore> store_ = std::make_shared<test::HashStore>();
};

TEST_F(NcclRelay, AnAbortReachesRanksThatKnowOfEachOtherByTheStoreAlone) {
  const auto started = Clock::now();
  NcclWorld world(library_, 3, apart(), store_);
  world[1].abort("a worker has died");
  world.run([&](NcclGroup& group) {
    EXPECT_EQ(failure_of(group), "rank 1 aborted the group: a worker has died");
  });
  EXPECT_LT(Clock::now() - started, seconds(10));
}

TEST_F(NcclRelay, WhatIsGivenUpAtTheEndIsToldBeforeIt) {
  NcclWorld world(library_, 2, apart(), store_);
  const auto work = world[0].barrier();
  world.end(0);
  EXPECT_EQ(failure_of(world[1]), "rank 0 destroyed the group before its operations were done");
}

TEST_F(NcclRelay, ASubGroupsFailureIsToldToo) {
  NcclWorld world(library_, 3, apart(), store_);
  std::vector<std::shared_ptr<ProcessGroup>> pairs(3);
  world.run([&](NcclGroup& group) {
    pairs[static_cast<std::size_t>(group.rank())] = group.new_group(std::vector<Rank>{0, 1});
  });
  pairs[0]->abort("enough");
  EXPECT_EQ(failure_of(*pairs[1]), "rank 0 aborted the group: enough");
  EXPECT_EQ(failure_of(world[2]), "rank 0 aborted the group: enough");
  pairs.clear();
}

TEST_F(NcclRelay, AStoreThatHoldsNoFailureDisturbsNobody) {
  NcclWorld world(library_, 2, apart(), store_);
  world.run([&](NcclGroup& group) {
    for (int i = 0; i < 20; ++i) group.barrier()->wait();
  });
  EXPECT_FALSE(store_->check({"ddp_nccl/0/default/aborted"}).value());
}

// Groups whose ranks share memory and know of each other by it.
class NcclHostGroup : public NcclRelay {
 protected:
  NcclHostGroup() {
    for (auto& transport : test::make_inproc_transports({2}, 0)) {
      hosts_.push_back(runtime::Group::make(std::move(transport), 0, {}));
    }
  }
  test::Tweak with_hosts() {
    return [this](NcclGroupOptions& options) {
      options.on_abort = nullptr;
      options.host_group = hosts_[static_cast<std::size_t>(options.rank)];
    };
  }

  std::vector<std::shared_ptr<ProcessGroup>> hosts_;
};

TEST_F(NcclHostGroup, ItsFailureEndsWhatHangsOnADevice) {
  control().hang_kernels(0);
  NcclWorld world(library_, 2, with_hosts());
  const auto work = world[0].barrier();
  const auto started = Clock::now();
  hosts_[1]->abort("a worker has died");
  EXPECT_THAT([&] { work->wait(); }, ::testing::ThrowsMessage<CollectiveError>(
                                         "rank 1 aborted the group: a worker has died"));
  EXPECT_LT(Clock::now() - started, seconds(10));
  EXPECT_EQ(failure_of(world[1]), "rank 1 aborted the group: a worker has died");
}

TEST_F(NcclHostGroup, EndsWithTheGroupOfTheDevices) {
  NcclWorld world(library_, 2, with_hosts());
  world[0].abort("loss is not a number");
  const char* const text = "rank 0 aborted the group: loss is not a number";
  EXPECT_EQ(failure_of(world[1]), text);
  EXPECT_EQ(failure_of(*hosts_[1]), text);
}

TEST(NcclFailureBytes, KeepCodeSuspectAndText) {
  const Failure failure{Errc::kPeerLost, 3, "rank 3: gone\nfor good"};
  const Failure again = nccl::decode_failure(nccl::encode_failure(failure));
  EXPECT_EQ(again.code, Errc::kPeerLost);
  EXPECT_EQ(again.suspect, 3);
  EXPECT_EQ(again.text, failure.text);
  EXPECT_TRUE(again.told);
  for (const char* bytes : {"", "7", "text", "0 1 x", "999 1 x", "-3 1 x"}) {
    EXPECT_EQ(nccl::decode_failure(bytes).code, Errc::kProtocol) << bytes;
  }
}

}  // namespace
}  // namespace ddp
