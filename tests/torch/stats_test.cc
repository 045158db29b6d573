// The statistics of a step: times, sizes, traces.
#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

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

TEST(Trace, HasWhatEveryRankDidInOneFile) {
  const TempDir folder;
  const std::string file = folder.path() / "trace.json";
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel model(make_mlp(7), group, options);
    auto trace = std::make_shared<Trace>(group->rank());
    model.set_trace(trace);
    for (int step = 0; step < 2; ++step) {
      const Trace::Scope scope(trace.get(), "loop", "step " + std::to_string(step));
      model.zero_grad();
      loss_of(model(input_of(group->rank(), step))).backward();
    }
    model.set_trace(nullptr);
    const std::size_t before = trace->size();
    for (int step = 0; step < 12; ++step) loss_of(model(input_of(group->rank()))).backward();
    EXPECT_EQ(trace->size(), before);
    trace->write(file, *group);
    EXPECT_THAT(error_of([&] { trace->write("/nowhere/trace.json", *group); }),
                HasSubstr("/nowhere/trace.json"));
  });
  const auto json = nlohmann::json::parse(std::ifstream(file));
  std::map<std::pair<int, std::string>, int> spans;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    ++spans[{event["pid"].get<int>(), event["cat"].get<std::string>()}];
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ((spans[{rank, "loop"}]), 2);
    EXPECT_EQ((spans[{rank, "compute"}]), 4);
    for (const char* bucket : {"bucket 0 of 4", "bucket 3 of 4"}) {
      EXPECT_EQ((spans[{rank, bucket}]), 6) << bucket;  // fill, queue, reduce
    }
  }
}

TEST(Trace, IsBounded) {
  Trace trace(0, 3);
  for (int i = 0; i < 5; ++i) trace.span("a", "b", Clock::now(), Clock::now());
  EXPECT_EQ(trace.size(), 3U);
  EXPECT_EQ(trace.dropped(), 2U);
}

}  // namespace
}  // namespace ddp::test
