#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/recording_group.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

TEST(RegisteredBuckets, GradientsAreReducedInTheGroupsMemory) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    at::Tensor kept;
    {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = true;
      DistributedDataParallel model(make_mlp(7), recording, options);
      loss_of(model(input_of(group->rank()))).backward();
      for (const at::Tensor& parameter : model.module().parameters()) {
        EXPECT_TRUE(recording->gave(parameter.grad().data_ptr(), parameter.grad().nbytes()));
      }
      kept = model.module().layers[0]->bias.grad();
    }
    // A gradient may outlive the buckets and the group's own memory of them.
    const at::Tensor copy = kept.clone();
    const auto others = recording->allocate(std::size_t{1} << 16);
    std::fill_n(others.get(), std::size_t{1} << 16, std::byte{0xff});
    EXPECT_TRUE(same_bytes(kept, copy));
  });
}

// One rank without room must not change what all of them get.
TEST(RegisteredBuckets, OrdinaryMemoryDoesWhereTheGroupHasNoneLeft) {
  for (const int full : {0, 1, 2}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      auto recording = std::make_shared<RecordingGroup>(group);
      recording->out_of_memory = full == 2 || full == group->rank();
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = true;
      DistributedDataParallel model(make_mlp(7), recording, options);
      loss_of(model(input_of(group->rank()))).backward();
      expect_average_gradients(model.module(), 2);
      for (const at::Tensor& parameter : model.module().parameters()) {
        EXPECT_EQ(recording->gave(parameter.grad().data_ptr(), parameter.grad().nbytes()),
                  !recording->out_of_memory);
      }
    });
  }
}

TEST(RegisteredBuckets, HoldCopiesOfGradientsToo) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    DistributedDataParallel model(make_mlp(7), recording);
    loss_of(model(input_of(group->rank()))).backward();
    EXPECT_EQ(recording->reduced_elsewhere, 0);
    for (const at::Tensor& parameter : model.module().parameters()) {
      EXPECT_FALSE(recording->gave(parameter.grad().data_ptr(), parameter.grad().nbytes()));
    }
  });
}

}  // namespace
}  // namespace ddp::test
