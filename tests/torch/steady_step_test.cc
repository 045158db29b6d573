// What a step costs beside its arithmetic, and what is known of it: memory, times, traces.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/tensors.h"

namespace {

std::atomic<long> allocations = 0;

void* counted(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace ddp::test {
namespace {

using testing::HasSubstr;

// `count` parameters of four elements; every gradient is the input, without a copy.
struct Many : torch::nn::Module {
  explicit Many(int count) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({4})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& weight : weights) sum = sum + weight.dot(x);
    return sum;
  }
  std::vector<at::Tensor> weights;
};

// Allocations of both ranks in one backward, in a steady state.
long allocations_of_a_backward(int parameters, bool with_ddp, bool with_hook) {
  std::atomic<long> result = 0;
  run_ranks({2}, [&](const GroupPtr& group) {
    at::set_num_threads(1);
    auto module = std::make_shared<Many>(parameters);
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    std::unique_ptr<DistributedDataParallel<Many>> model;
    if (with_ddp) {
      model = std::make_unique<DistributedDataParallel<Many>>(module, group, options);
      if (with_hook) {
        model->register_comm_hook(group, [](ProcessGroup& of, GradBucket& bucket) {
          return Future(of.all_reduce(buffer_of(bucket.buffer()), ReduceOp::kAvg), bucket.buffer());
        });
      }
    }
    const at::Tensor x = torch::ones({4});
    for (int step = 0; step < 14; ++step) {  // Behind the ten that take times.
      module->zero_grad(/*set_to_none=*/false);
      const at::Tensor loss = model ? model->forward(x) : module->forward(x);
      group->barrier()->wait();
      const long before = allocations;
      group->barrier()->wait();
      loss.backward();
      group->barrier()->wait();
      if (step == 13) result = allocations - before;
    }
  });
  return result;
}

TEST(SteadyStep, AllocatesNothingForAParameter) {
  for (const bool with_hook : {false, true}) {
    const auto added = [&](int parameters) {
      return allocations_of_a_backward(parameters, true, with_hook) -
             allocations_of_a_backward(parameters, false, false);
    };
    const long few = added(10);
    const long many = added(210);
    // For a node with a hook, autograd itself copies the list of its gradients; everything else is
    // for a backward or a bucket, of which there is one.
    const double for_a_parameter = static_cast<double>(many - few) / 200 / 2;
    std::printf("allocations: %ld for a backward, %.2f for each parameter, hook %d\n", few / 2,
                for_a_parameter, with_hook ? 1 : 0);
    EXPECT_LE(for_a_parameter, 1.2);
    EXPECT_LE(few / 2, 30);
  }
}

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
    EXPECT_EQ(to_json(stats)["rebuilt_bucket_sizes"].size(), 4U);

    model.set_runtime_logging_sample_rate(5);
    for (int step = 0; step < 10; ++step) loss_of(model(input_of(0, step))).backward();
    EXPECT_EQ(model.stats().sampled_iterations, 12U);
    EXPECT_THAT(error_of([&] { model.set_runtime_logging_sample_rate(0); }),
                HasSubstr("at least 1"));
  });
}

TEST(Trace, HasWhatEveryRankDidInOneFile) {
  const std::string file = testing::TempDir() + "ddp_trace_test.json";
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
  std::remove(file.c_str());
  std::map<std::pair<int, std::string>, int> spans;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    ++spans[{event["pid"].get<int>(), event["cat"].get<std::string>()}];
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ((spans[{rank, "loop"}]), 2);
    EXPECT_EQ((spans[{rank, "compute"}]), 4);
    for (const char* bucket : {"bucket 0", "bucket 3"}) {
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
