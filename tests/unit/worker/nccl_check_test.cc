#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/nccl_world.h"
#include "tests/support/worker_world.h"

// Comparing what ranks call, over a real host group, before NCCL would hang.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::NcclWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclCheck : public test::StandinTest {
 protected:
  // Runs body(group) on the ranks of a checked world.
  void checked(int size, const std::function<void(NcclGroup&)>& body) {
    const auto hosts = test::thread_groups({size});
    NcclWorld world(library_, size, [&](NcclGroupOptions& options) {
      options.check = true;
      options.check_group = hosts[static_cast<std::size_t>(options.rank)];
    });
    world.run(body);
  }
  std::shared_ptr<const NcclLibrary> library_ = test::standin_library();
};

CollectiveError failure_of(const WorkPtr& work) {
  try {
    work->wait();
  } catch (const CollectiveError& error) {
    return error;
  }
  ADD_FAILURE() << "no CollectiveError";
  return {"none", {}, -1};
}

TEST_F(NcclCheck, RanksThatAgreeNoticeNothing) {
  checked(3, [&](NcclGroup& group) {
    const test::DeviceArray data(group, *library_, DType::kF32, {1.0, 2.0});
    group.all_reduce(data.buffer(), ReduceOp::premul_sum(group.rank()))->wait();
    EXPECT_EQ(data.values(), (std::vector<double>{3.0, 6.0}));
    // Not every rank takes part in what lies between collectives.
    if (group.rank() == 0) group.send(data.buffer(), 1)->wait();
    if (group.rank() == 1) group.recv(data.buffer(), 0)->wait();
    group.barrier()->wait();
  });
}

TEST_F(NcclCheck, EveryKindOfMismatchIsAnErrorOnAllRanksThatNamesBoth) {
  using Call = std::function<WorkPtr(NcclGroup&, const test::DeviceArray&)>;
  const std::vector<Call> calls = {
      [](NcclGroup& g, const auto& a) { return g.all_reduce(a.part(0, 4), ReduceOp::kSum); },
      [](NcclGroup& g, const auto& a) { return g.all_reduce(a.part(0, 3), ReduceOp::kSum); },
      [](NcclGroup& g, const auto& a) { return g.all_reduce(a.part(0, 4), ReduceOp::kMax); },
      [](NcclGroup& g, const auto& a) { return g.reduce(a.part(0, 4), 0, ReduceOp::kSum); },
      [](NcclGroup& g, const auto& a) { return g.reduce(a.part(0, 4), 1, ReduceOp::kSum); },
      [](NcclGroup& g, const auto& a) { return g.broadcast(a.part(0, 4), 0); },
      [](NcclGroup& g, const auto& a) { return g.all_gather(a.part(0, 4), a.part(4, 8)); },
      [](NcclGroup& g, const auto&) { return g.barrier(); },
  };
  for (std::size_t a = 0; a < calls.size(); ++a) {
    const std::size_t b = (a + 1) % calls.size();
    checked(2, [&](NcclGroup& group) {
      const test::DeviceArray data(group, *library_, DType::kF32, std::vector<double>(12));
      const CollectiveError error = failure_of(calls[group.rank() == 0 ? a : b](group, data));
      EXPECT_EQ(error.code, Errc::kMismatch) << error.what();
      EXPECT_EQ(error.suspect_rank, 1);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 calls "), HasSubstr("but rank 1 calls ")));
    });
  }
}

TEST_F(NcclCheck, TheMessageSaysWhoDoesWhat) {
  checked(3, [&](NcclGroup& group) {
    const test::DeviceArray data(group, *library_, DType::kF32, std::vector<double>(11));
    const std::size_t count = group.rank() == 2 ? 11 : 10;
    const CollectiveError error =
        failure_of(group.all_reduce(data.part(0, count), ReduceOp::kSum, {{}, "bucket 3"}));
    EXPECT_STREQ(error.what(),
                 "all_reduce #0 (bucket 3): rank 0 calls all_reduce (sum) of 10 f32, but rank 2 "
                 "calls all_reduce (sum) of 11 f32");
  });
}

TEST_F(NcclCheck, ARankThatDoesNotComeIsNamed) {
  checked(3, [&](NcclGroup& group) {
    group.barrier()->wait();
    if (group.rank() == 1) return;
    OpOptions options;
    options.timeout = milliseconds(100);
    // The check's deadline is the operation's, and either may be seen first.
    const CollectiveError error = failure_of(group.barrier(options));
    EXPECT_EQ(error.code, Errc::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("barrier #1"));
  });
}

TEST_F(NcclCheck, AnAbortEndsAComparison) {
  const auto started = Clock::now();
  checked(2, [&](NcclGroup& group) {
    if (group.rank() == 1) {
      group.abort("stop");
      return;
    }
    try {
      group.barrier()->wait();
      ADD_FAILURE() << "no failure";
    } catch (const CollectiveError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 aborted the group: stop"));
    }
  });
  EXPECT_LT(Clock::now() - started, seconds(10));
}

}  // namespace
}  // namespace ddp
