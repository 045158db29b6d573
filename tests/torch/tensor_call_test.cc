// Rules that all functions of worker/ddp/tensors/tensor_collectives.h share: which calls they
// refuse, and how tensors and their Work behave.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch/rank_threads.h"
#include "worker/ddp/tensors/tensor_collectives.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// What std::invalid_argument says.
std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(TensorCall, RefusesWhatCollectivesCannotMove) {
  run_ranks({2}, [](const GroupPtr& group) {
    EXPECT_THAT(refusal_of([&] { all_reduce(at::ones({3}, at::kShort), *group); }),
                testing::AllOf(HasSubstr("all_reduce: tensor"), HasSubstr("int16"),
                               HasSubstr("uint8, int8, int32, int64, float16, bfloat16, float32, "
                                         "float64 and bool")));
    EXPECT_THAT(refusal_of([&] { broadcast(at::ones({3}, at::kComplexFloat), 0, *group); }),
                HasSubstr("broadcast: tensor is complex64"));
    EXPECT_THAT(refusal_of([&] { all_reduce(at::empty({3}, at::kMeta), *group); }),
                testing::AllOf(HasSubstr("all_reduce: tensor is on meta"), HasSubstr("NCCL")));
    EXPECT_THAT(refusal_of([&] { all_reduce(at::eye(3).to_sparse(), *group); }),
                HasSubstr("all_reduce: tensor is not dense"));
    EXPECT_THAT(refusal_of([&] { all_reduce({}, *group); }),
                HasSubstr("all_reduce: tensor is undefined"));
    EXPECT_THAT(refusal_of([&] { all_reduce(at::ones({1}).expand({3}), *group); }),
                HasSubstr("share memory"));
    const at::Tensor nothing_was_sent = at::ones({3});
    all_reduce(nothing_was_sent, *group);
    EXPECT_TRUE(at::equal(nothing_was_sent, at::full({3}, 2.0F)));
  });
}

TEST(TensorCall, RefusesReductionsThatTheTypeDoesNotHave) {
  run_ranks({2}, [](const GroupPtr& group) {
    EXPECT_NE(refusal_of([&] { all_reduce(at::ones({3}, at::kInt), *group, ReduceOp::kAvg); }),
              "no refusal");
    EXPECT_NE(refusal_of([&] { all_reduce(at::ones({3}, at::kBool), *group, ReduceOp::kAvg); }),
              "no refusal");
    EXPECT_NE(refusal_of([&] { all_reduce(at::ones({3}), *group, ReduceOp::kBor); }), "no refusal");
  });
}

TEST(TensorCall, RefusesListsThatDoNotFit) {
  run_ranks({2}, [](const GroupPtr& group) {
    const at::Tensor row = at::ones({3});
    const at::Tensor whole = row.to(at::kInt);
    const bool first = group->rank() == 0;
    EXPECT_THAT(refusal_of([&] { all_reduce_coalesced({}, *group); }), HasSubstr("is empty"));
    EXPECT_THAT(refusal_of([&] {
                  all_reduce_coalesced({row, whole}, *group);
                }),
                HasSubstr("tensors[1] is int32, a tensor before it is float32"));
    EXPECT_THAT(refusal_of([&] { all_gather({row}, row, *group); }),
                HasSubstr("tensor_list has 1 tensors for 2 ranks"));
    EXPECT_THAT(refusal_of([&] { all_gather({row, whole}, row, *group); }), HasSubstr("int32"));
    const at::Tensor column = at::ones({3, 1});
    EXPECT_THAT(refusal_of([&] {
                  all_gather({column, column}, row, *group);
                }),
                HasSubstr("float32 [3, 1]"));
    EXPECT_THAT(refusal_of([&] { all_gather_into_tensor(at::ones({5}), row, *group); }),
                HasSubstr("need an output of 6 elements, not 5"));
    EXPECT_THAT(refusal_of([&] {
                  reduce_scatter(row, {row, at::ones({4})}, *group);
                }),
                HasSubstr("input_list[1] is float32 [4]"));
    EXPECT_THAT(refusal_of([&] { gather(row, *group, {}, group->rank()); }),
                HasSubstr("gather_list, which dst must give,"));
    EXPECT_THAT(refusal_of([&] {
                  gather(row, *group, {row, row}, first ? 1 : 0);
                }),
                HasSubstr("gather_list is given on rank"));
    EXPECT_THAT(refusal_of([&] { scatter(row, *group, {}, group->rank()); }),
                HasSubstr("scatter_list, which src must give,"));
    EXPECT_THAT(refusal_of([&] {
                  scatter(row, *group, {row, row}, first ? 1 : 0);
                }),
                HasSubstr("scatter_list is given on rank"));
    EXPECT_THAT(refusal_of([&] { broadcast(row, 2, *group); }), HasSubstr("2 is not in 0..1"));
  });
}

TEST(TensorCall, RefusesSplitsThatDoNotFit) {
  run_ranks({2}, [](const GroupPtr& group) {
    const at::Tensor rows = at::ones({4, 2});
    const auto with_sizes = [&](const std::vector<std::int64_t>& out,
                                const std::vector<std::int64_t>& in) {
      return refusal_of([&] { all_to_all_single(at::ones({4, 2}), rows, *group, out, in); });
    };
    EXPECT_THAT(with_sizes({2, 2}, {1, 2}),
                HasSubstr("the split sizes of input add up to 3, it has 4 rows"));
    EXPECT_THAT(with_sizes({4}, {2, 2}), HasSubstr("1 split sizes of output for 2 ranks"));
    EXPECT_THAT(with_sizes({5, -1}, {2, 2}), HasSubstr("a split size of output is -1"));
    EXPECT_THAT(refusal_of([&] { all_to_all_single(at::ones({3}), at::ones({3}), *group); }),
                HasSubstr("3 rows of input cannot be divided equally among 2 ranks"));
    EXPECT_THAT(refusal_of([&] { new_group(*group, {1, 1}); }), HasSubstr("rank 1 is given twice"));
    EXPECT_THAT(refusal_of([&] { new_group(*group, {2}); }), HasSubstr("2 is not in 0..1"));
    EXPECT_THAT(refusal_of([&] {
                  split_group(*group, {{0, 1}, {1}});
                }),
                HasSubstr("rank 1 is given twice"));
    EXPECT_THAT(refusal_of([&] {
                  split_group(*group, {{0}, {}});
                }),
                HasSubstr("split_ranks[1] is empty"));
  });
}

using Flag = std::shared_ptr<std::atomic<bool>>;

// A tensor whose memory sets the flag when nobody uses it any more.
at::Tensor watched(const Flag& freed) {
  auto* const memory = new float[4]{1, 2, 3, 4};
  const auto release = [memory, freed](void*) {
    *freed = true;
    delete[] memory;
  };
  return at::from_blob(memory, {4}, release, at::TensorOptions(at::kFloat));
}

TEST(TensorCall, MemoryLivesAsLongAsTheOperationAlsoIfItsWorkIsDropped) {
  std::promise<void> come;
  run_ranks({2}, [&](const GroupPtr& group) {
    if (group->rank() == 1) {
      come.get_future().wait();
      for (int i = 0; i < 3; ++i) all_reduce(at::ones({4}), *group);
      barrier(*group);
      return;
    }
    const auto kept_freed = std::make_shared<std::atomic<bool>>(false);
    const auto dropped_freed = std::make_shared<std::atomic<bool>>(false);
    WorkPtr kept = all_reduce(watched(kept_freed), *group, ReduceOp::kSum, /*async_op=*/true);
    all_reduce(watched(dropped_freed), *group, ReduceOp::kSum, /*async_op=*/true);
    EXPECT_FALSE(*kept_freed);
    EXPECT_FALSE(*dropped_freed);
    come.set_value();
    kept->wait();
    EXPECT_FALSE(*kept_freed);
    kept.reset();
    EXPECT_TRUE(*kept_freed);
    // Done after the dropped one; the next call then finds that one done.
    all_reduce(at::ones({4}), *group);
    barrier(*group, /*async_op=*/true)->wait();
    EXPECT_TRUE(*dropped_freed);
  });
}

at::Tensor with_gaps() { return at::ones({4, 2}).select(1, 0); }

TEST(TensorCall, WhatGoesThroughACopyIsThereWhenTheWorkIsDone) {
  run_ranks({2}, [](const GroupPtr& group) {
    const at::Tensor tensor = with_gaps();
    const WorkPtr work = all_reduce(tensor, *group, ReduceOp::kSum, /*async_op=*/true);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!work->done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
      std::this_thread::yield();
    }
    EXPECT_TRUE(at::equal(tensor, at::full({4}, 2.0F)));
    // A result is brought once: what is written later stays.
    tensor.zero_();
    work->wait();
    EXPECT_TRUE(at::equal(tensor, at::zeros({4})));
  });
}

TEST(TensorCall, AFailureLeavesACopiedTensorAsItWas) {
  run_ranks({2}, [](const GroupPtr& group) {
    if (group->rank() == 1) {
      group->abort("no more");
      return;
    }
    const at::Tensor tensor = with_gaps();
    WorkPtr work;
    try {
      work = all_reduce(tensor, *group, ReduceOp::kSum, /*async_op=*/true);
      work->wait();
      ADD_FAILURE() << "no error";
    } catch (const CollectiveError& error) {
      EXPECT_THAT(error.what(), HasSubstr("no more"));
    }
    EXPECT_TRUE(!work || work->done());
    EXPECT_TRUE(at::equal(tensor, at::ones({4})));
    EXPECT_THROW(all_reduce(tensor, *group), CollectiveError);
  });
}

TEST(TensorCall, ParametersCanBeGivenAndAutogradSeesThatTheyChanged) {
  run_ranks({2}, [](const GroupPtr& group) {
    for (const bool contiguous : {true, false}) {
      const at::Tensor base = contiguous ? at::ones({4}) : with_gaps();
      const at::Tensor parameter = base.requires_grad_();
      const at::Tensor loss = (parameter * parameter).sum();
      all_reduce(parameter, *group);
      EXPECT_TRUE(parameter.requires_grad() && parameter.is_leaf());
      EXPECT_TRUE(at::equal(parameter.detach(), at::full({4}, 2.0F)));
      try {
        loss.backward();
        ADD_FAILURE() << "autograd used values that have changed";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("modified by an inplace operation"));
      }
    }
  });
}

}  // namespace
}  // namespace ddp::test
