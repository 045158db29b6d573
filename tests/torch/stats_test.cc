// The statistics of a step: times, sizes, traces.
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/runtime/trace.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

TEST(Stats, HaveTheFieldsOfPyTorch) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel model(make_mlp(7), group, options);
    EXPECT_EQ(model.stats().backward_comm_time, 0);
    for (int step = 0; step < 25; ++step) {
      model.zero_grad();
      loss_of(model(input_of(group->rank(), step))).backward();
    }
    const DdpStats stats = model.stats();
    EXPECT_EQ(stats.iteration, 25U);
    EXPECT_EQ(stats.num_iterations, 25U);
    EXPECT_EQ(stats.sampled_iterations, 10U);
    EXPECT_GT(stats.forward_compute_time, 0);
    EXPECT_GT(stats.backward_compute_time, 0);
    EXPECT_GT(stats.backward_comm_time, 0);
    EXPECT_GT(stats.avg_backward_comm_time, 0);
    EXPECT_LE(stats.backward_compute_comm_overlap_time, stats.backward_comm_time);
    EXPECT_LE(stats.backward_compute_comm_overlap_time, stats.backward_compute_time);
    EXPECT_EQ(stats.bucket_sizes, (std::vector<std::size_t>{16, 80, 20, 120}));
    EXPECT_TRUE(stats.has_rebuilt_buckets);
    EXPECT_EQ(stats.rebuilt_bucket_sizes.size(), 4U);
    EXPECT_EQ(stats.prev_iteration_grad_ready_order_indices.size(), 4U);
    EXPECT_EQ(stats.num_parameter_tensors, 4U);
    EXPECT_EQ(stats.total_parameter_size_bytes, 236U);
    EXPECT_EQ(stats.dtypes, std::vector<std::string>{"float32"});
    EXPECT_EQ(stats.world_size, 2);
    EXPECT_EQ(stats.rank, group->rank());
    EXPECT_THAT(stats.module_name, HasSubstr("Mlp"));
    EXPECT_TRUE(stats.can_set_static_graph);

    model.set_runtime_logging_sample_rate(5);
    for (int step = 0; step < 10; ++step) loss_of(model(input_of(0, step))).backward();
    EXPECT_EQ(model.stats().sampled_iterations, 12U);
    EXPECT_THAT(error_of([&] { model.set_runtime_logging_sample_rate(0); }),
                HasSubstr("at least 1"));
  });
}

// The ranks are threads of this process, so they share its trace.
TEST(Trace, HasForwardBackwardAndEachBucketOfEachIteration) {
  auto ring = std::make_shared<wire::TraceRing>();
  ring->on = 1;
  runtime::trace_into(ring, *ring);
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel model(make_mlp(7), group, options);
    for (int step = 0; step < 20; ++step) {
      model.zero_grad();
      loss_of(model(input_of(group->rank(), step))).backward();
    }
  });
  std::uint64_t read = 0;
  std::map<std::string, int> spans;
  for (const wire::TraceSpan& span : wire::take_spans(*ring, read, 100'000, true).spans) {
    EXPECT_LE(span.begin_ns, span.end_ns);
    ++spans[std::string(wire::lane_of(span))];
  }
  EXPECT_EQ(spans["compute"], 2 * 20 * 2);  // Forward and backward.
  EXPECT_EQ(spans["reducer"], 2 * 20);
  for (const char* bucket : {"bucket 0 of 4", "bucket 3 of 4"}) {
    EXPECT_EQ(spans[bucket], 2 * 20 * 3) << bucket;  // fill, queue, reduce
  }
  ring->on = 0;
  const std::uint64_t before = ring->spans;
  run_ranks({1}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group);
    loss_of(model(input_of(0))).backward();
  });
  EXPECT_EQ(ring->spans, before);
}

}  // namespace
}  // namespace ddp::test
