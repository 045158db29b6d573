// Models on other devices than the CPU, or on several, train to the bytes of the same model on the
// CPU. The devices are those of host_device.h, so each rank's backward runs on autograd's threads,
// one for each device.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/host_device.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/recording_group.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_commit.h"
#include "worker/ddp/state/load_tensors.h"
#include "worker/ddp/tensors/host_copies.h"
#include "worker/train/models/model.h"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kWorld = 2;
constexpr int kSteps = 4;
constexpr int kCpu = -1;  // Else the number of one of the rank's devices.

// Every rank has devices of its own, as it should, so they have other numbers on every rank.
at::Device device_of(int rank, int number) {
  return number == kCpu ? at::Device(at::kCPU) : host_device(rank * kHostDevices / kWorld + number);
}

using Places = std::vector<int>;  // Of the three layers.

// Three layers on up to three devices, a normalisation with buffers on the second, and a parameter
// that only every other batch uses.
struct Staged : torch::nn::Module {
  Staged(int rank, const Places& places) {
    layers.push_back(register_module("first", torch::nn::Linear(6, 5)));
    layers.push_back(register_module("second", torch::nn::Linear(5, 7)));
    layers.push_back(register_module("third", torch::nn::Linear(7, 4)));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    rare = register_parameter("rare", torch::zeros({5}));
    fill(*this, 7);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      devices.push_back(device_of(rank, places[i]));
      layers[i]->to(devices[i]);
    }
    norm->to(devices[1]);
    rare.set_data(rare.to(devices[0]));
  }

  at::Tensor forward(const at::Tensor& input, bool with_rare) {
    at::Tensor x = layers[0](input.to(devices[0])).tanh();
    if (with_rare) x = x + rare;
    x = norm(layers[1](x.to(devices[1]))).tanh();
    return layers[2](x.to(devices[2]));
  }

  std::vector<torch::nn::Linear> layers;
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor rare;
  std::vector<at::Device> devices;
};

// Parameters, buffers and gradients, wherever they are.
std::string bytes_on_host(const Staged& module) {
  std::string all;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    all.append(static_cast<const char*>(plain.data_ptr()), plain.nbytes());
  };
  for (const at::Tensor& parameter : module.parameters()) {
    add(parameter);
    if (parameter.grad().defined()) add(parameter.grad());
  }
  for (const at::Tensor& buffer : module.buffers()) add(buffer);
  return all;
}

struct Training {
  std::string name;
  DistributedDataParallelOptions options;
  std::string hook;
  bool uses_rare_always = true;
  bool has_device_groups = false;
  bool at_step = false;
};

std::ostream& operator<<(std::ostream& out, const Training& training) {
  return out << training.name;
}

std::vector<Training> trainings() {
  std::vector<Training> all;
  for (Mode& mode : modes()) all.push_back({mode.name, mode.options, "", true, false, false});
  for (const char* hook : {"fp16", "powersgd:rank=1,start_iter=2,min_compression_rate=0.5"}) {
    all.push_back({std::string("Hook") + std::string(hook).substr(0, 4), {}, hook});
  }
  Training unused{"UnusedEveryOtherStep", {}, "", false};
  unused.options.find_unused_parameters = true;
  all.push_back(unused);
  unused.name = "UnusedEveryOtherStepWithViews";
  unused.options.gradient_as_bucket_view = true;
  all.push_back(unused);
  Training fixed{"StaticGraph", {}, ""};
  fixed.options.static_graph = true;
  all.push_back(fixed);
  Training low{"MixedPrecision", {}, ""};
  low.options.mixed_precision.param_dtype = at::kBFloat16;
  low.options.mixed_precision.reduce_dtype = at::kFloat;
  low.options.mixed_precision.buffer_dtype = at::kBFloat16;
  all.push_back(low);
  for (bool views : {false, true}) {
    Training direct{views ? "DeviceGroupsWithViews" : "DeviceGroups", {}, "", true, true};
    direct.options.gradient_as_bucket_view = views;
    all.push_back(direct);
    Training step{views ? "AtStepWithDeviceGroups" : "AtStep", {}, "", false, views, true};
    step.options.gradient_as_bucket_view = views;
    all.push_back(step);
  }
  Training step_hook{"AtStepWithHook", {}, "fp16"};
  step_hook.at_step = true;
  all.push_back(step_hook);
  return all;
}

struct Result {
  std::string bytes;
  std::size_t direct = 0;  // Operations on device memory.
};

// What a rank's module is after training.
Result train(const Training& training, const GroupPtr& group, const Places& places) {
  const int rank = group->rank();
  auto module = std::make_shared<Staged>(rank, places);
  std::vector<std::shared_ptr<RecordingGroup>> besides;
  std::vector<DeviceGroup> device_groups;
  if (training.has_device_groups) {
    for (int number = 0; number < kHostDevices / kWorld; ++number) {
      besides.push_back(std::make_shared<RecordingGroup>(group));
      device_groups.push_back({device_of(rank, number), besides.back()});
    }
  }
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.25).momentum(0.5));
  const auto input = [&](int step) { return input_of(rank, step); };
  if (training.at_step) {
    DistributedOptimizerOptions options;
    options.gradient_as_bucket_view = training.options.gradient_as_bucket_view;
    options.device_groups = device_groups;
    DistributedOptimizer stepper(optimizer, *module, group, options);
    if (!training.hook.empty()) {
      stepper.register_comm_hook(make_comm_hook_from_text(training.hook, group));
    }
    for (int step = 0; step < kSteps; ++step) {
      stepper.zero_grad();
      const bool with_rare = training.uses_rare_always || step % 2 == 0;
      loss_of(module->forward(input(step), with_rare)).backward();
      stepper.clip_grad_norm_(0.5);
      stepper.step();
    }
  } else {
    DistributedDataParallelOptions options = training.options;
    options.device_groups = device_groups;
    DistributedDataParallel<Staged> model(module, group, options);
    if (!training.hook.empty()) {
      model.register_comm_hook(make_comm_hook_from_text(training.hook, group));
    }
    for (int step = 0; step < kSteps; ++step) {
      model.zero_grad(/*set_to_none=*/step % 2 == 0);
      const bool with_rare = training.uses_rare_always || step % 2 == 0;
      {
        const NoSync apart = model.no_sync();
        loss_of(model(input(step + 50), with_rare)).backward();
      }
      loss_of(model(input(step), with_rare)).backward();
      optimizer.step();
    }
  }
  Result result{bytes_on_host(*module)};
  for (const auto& beside : besides) result.direct += beside->take().size();
  return result;
}

class Devices : public ::testing::TestWithParam<Training> {};
INSTANTIATE_TEST_SUITE_P(Trainings, Devices, ::testing::ValuesIn(trainings()),
                         [](const auto& training) { return training.param.name; });

TEST_P(Devices, TheModelEndsWithTheBytesOfTheSameOneOnTheCpu) {
  const Training& training = GetParam();
  run_ranks({kWorld}, [&](const GroupPtr& group) {
    Training on_cpu = training;
    on_cpu.has_device_groups = false;
    const Result cpu = train(on_cpu, group, {kCpu, kCpu, kCpu});
    for (const Places& places : {Places{0, 0, 0}, Places{0, 1, 2}, Places{1, kCpu, 0}}) {
      const Result result = train(training, group, places);
      EXPECT_EQ(result.bytes == cpu.bytes, true) << places[0] << places[1] << places[2];
      EXPECT_EQ(result.direct > 0, training.has_device_groups);
    }
  });
}

TEST(DevicesTest, BucketsHoldGradientsOfOneDevice) {
  run_ranks({kWorld}, [](const GroupPtr& group) {
    auto module = std::make_shared<Staged>(group->rank(), Places{0, 1, kCpu});
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    DistributedDataParallel<Staged> model(module, group, options);
    for (int step = 0; step < 2; ++step) {  // Before and after buckets are made anew.
      ASSERT_EQ(model.reducer().buckets().size(), 3U);
      loss_of(model(input_of(group->rank()), true)).backward();
    }
    for (const at::Tensor& parameter : module->parameters()) {
      EXPECT_EQ(parameter.grad().device(), parameter.device());
    }
    ReducerOptions layout;  // Names are all that a saved one has.
    layout.bucket_layout = {{"first.weight", "second.weight"}};
    EXPECT_THAT(error_of([&] { Reducer(state_of(*module).trainable(), group, layout); }),
                HasSubstr("second.weight in bucket 0 is of another type or on another device"));
  });
}

// Autograd's threads for devices call the reducer, not the thread that calls backward().
TEST(DevicesTest, HooksAreCalledByTheThreadsOfDevices) {
  run_ranks({kWorld}, [](const GroupPtr& group) {
    struct Threads {
      std::vector<std::thread::id> seen;
    };
    auto threads = std::make_shared<Threads>();
    auto module = std::make_shared<Staged>(group->rank(), Places{0, 1, 2});
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel<Staged> model(module, group, options);
    model.register_comm_hook(threads, [&group](Threads& state, GradBucket& bucket) {
      state.seen.push_back(std::this_thread::get_id());
      EXPECT_TRUE(bucket.buffer().device().is_cpu());
      EXPECT_TRUE(bucket.gradients().front().device().is_cpu());
      EXPECT_FALSE(bucket.parameters().front().device().is_cpu());
      return Future(
          group->all_reduce({bucket.buffer().data_ptr(),
                             static_cast<std::size_t>(bucket.buffer().numel()), DType::kF32},
                            ReduceOp::kAvg),
          bucket.buffer());
    });
    loss_of(model(input_of(group->rank()), true)).backward();
    std::sort(threads->seen.begin(), threads->seen.end());
    EXPECT_FALSE(threads->seen.empty());
    EXPECT_EQ(std::count(threads->seen.begin(), threads->seen.end(), std::this_thread::get_id()),
              0);
    threads->seen.erase(std::unique(threads->seen.begin(), threads->seen.end()),
                        threads->seen.end());
    EXPECT_GE(threads->seen.size(), 2U);
  });
}

TEST(DevicesTest, ADistributionThatDiffersBetweenRanksIsNamed) {
  run_ranks({kWorld}, [](const GroupPtr& group) {
    const int rank = group->rank();
    auto module = std::make_shared<Staged>(rank, rank == 0 ? Places{0, 1, 1} : Places{0, 1, 0});
    EXPECT_THAT(error_of([&] { DistributedDataParallel<Staged> model(module, group); }),
                AllOf(HasSubstr("third.weight"), HasSubstr("device number 1 of the module"),
                      HasSubstr("device number 0 of the module")));
    auto mixed = std::make_shared<Staged>(rank, Places{0, 1, rank == 0 ? kCpu : 2});
    EXPECT_THAT(error_of([&] { DistributedDataParallel<Staged> model(mixed, group); }),
                AllOf(HasSubstr("third.weight"), HasSubstr("device number 2 of the module")));
  });
}

TEST(DevicesTest, DeviceGroupsThatDoNotFitAreNamed) {
  run_ranks({kWorld}, [](const GroupPtr& group) {
    const int rank = group->rank();
    auto module = std::make_shared<Staged>(rank, Places{0, 1, 2});
    const auto refusal = [&](const std::vector<DeviceGroup>& groups) {
      DistributedDataParallelOptions options;
      options.device_groups = groups;
      return error_of([&] { DistributedDataParallel<Staged> model(module, group, options); });
    };
    const at::Device first = device_of(rank, 0);
    EXPECT_THAT(refusal({{first, nullptr}}), HasSubstr("is null"));
    EXPECT_THAT(refusal({{at::kCPU, group}}), HasSubstr("is not needed"));
    EXPECT_THAT(refusal({{first, group}, {first, group}}), HasSubstr("is listed twice"));
    const GroupPtr alone = group->split(rank);
    EXPECT_THAT(refusal({{first, alone}}), HasSubstr("as rank 0 of 1"));
  });
}

TEST(DevicesTest, AModuleThatIsMovedAfterWrappingIsNamed) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto module = std::make_shared<Staged>(0, Places{0, 0, 0});
    DistributedDataParallel<Staged> model(module, group);
    module->to(device_of(0, 1));
    EXPECT_THAT(
        error_of([&] { model(input_of(0), true); }),
        AllOf(HasSubstr("is on " + device_of(0, 1).str() + " now"),
              HasSubstr("it was on " + device_of(0, 0).str() + " when the module was wrapped")));
  });
}

TEST(DevicesTest, StateIsCopiedToTheHostWithOneWaitForEachDevice) {
  const auto floats = [](const at::Device& device, float value) {
    return torch::full({3, 2}, value, at::TensorOptions(device));
  };
  const std::vector<at::Tensor> from = {floats(host_device(0), 1), floats(at::kCPU, 2),
                                        floats(host_device(1), 3).t(), floats(host_device(0), 4),
                                        at::empty({0}, at::TensorOptions(host_device(2)))};
  constexpr std::size_t kFloats = 6;
  std::vector<float> to(from.size() * kFloats, -1);
  const int waits = host_device_waits();
  HostCopies copies;
  for (std::size_t i = 0; i < from.size(); ++i) {
    copies.start(reinterpret_cast<std::byte*>(to.data() + i * kFloats), from[i]);
    from[i].fill_(7);
  }
  EXPECT_EQ(host_device_waits(), waits);
  copies.wait();
  EXPECT_EQ(host_device_waits(), waits + 2);
  const std::vector<float> expected = {1, 2, 3, 4, -1};
  for (std::size_t i = 0; i < to.size(); ++i) EXPECT_EQ(to[i], expected[i / kFloats]) << i;
}

TEST(DevicesTest, ACommitWaitsOnceForEachDevice) {
  Staged module(0, {0, 1, 1});
  RegisteredState state;
  state.add_module("model", module);
  const std::string sha256 = weights_sha256(module);
  elastic::CommittedState commit;
  commit.world_size = 1;
  const int waits = host_device_waits();
  const auto captured = elastic::capture(state, 0, commit);
  ASSERT_TRUE(captured) << captured.error().message;
  EXPECT_EQ(host_device_waits(), waits + 2);
  fill(module, 8);
  EXPECT_NE(weights_sha256(module), sha256);
  ASSERT_TRUE(elastic::put_back(commit, state, 0, 1));
  EXPECT_EQ(weights_sha256(module), sha256);
}

TEST(DevicesTest, StateIsSavedFromAndLoadedToAnyDevice) {
  const TempDir folder;
  run_ranks({1}, [&](const GroupPtr& group) {
    Staged on_cpu(0, {kCpu, kCpu, kCpu});
    Staged on_devices(0, {0, 1, 2});
    EXPECT_EQ(weights_sha256(on_cpu), weights_sha256(on_devices));
    const auto optimizer_of = [](Staged& module) {
      return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.25).momentum(0.5));
    };
    const auto step = [](Staged& module, torch::optim::Optimizer& optimizer, int number) {
      module.zero_grad();
      loss_of(module.forward(input_of(0, number), true)).backward();
      optimizer.step();
    };
    auto optimizer = optimizer_of(on_devices);
    for (int i = 0; i < 2; ++i) step(on_devices, optimizer, i);
    const auto checkpointer = [&](Staged& module, torch::optim::Optimizer& its_optimizer) {
      auto made =
          std::make_unique<Checkpointer>(CheckpointOptions{folder.path() / "saved", 3}, group);
      made->add_module("model", module);
      made->add_optimizer("optimizer", its_optimizer, module);
      return made;
    };
    const auto saving = checkpointer(on_devices, optimizer);
    ASSERT_TRUE(saving->prepare());
    const int waits = host_device_waits();
    ASSERT_TRUE(saving->save(2, 0));
    EXPECT_EQ(host_device_waits(), waits + 3);
    step(on_devices, optimizer, 2);
    ASSERT_TRUE(saving->wait());
    const auto tensors =
        load_tensors(folder.path() / "saved", {.map_location = [](auto name) {
                       return name.ends_with("bias") ? host_device(1) : host_device(0);
                     }});
    ASSERT_TRUE(tensors) << tensors.error().message;
    for (const auto& [name, tensor] : tensors->tensors) {
      EXPECT_EQ(tensor.device(), host_device(name.ends_with("bias") ? 1 : 0)) << name;
    }
    for (const Places& places : {Places{kCpu, kCpu, kCpu}, Places{1, 1, 2}}) {
      Staged again(0, places);
      auto its_optimizer = optimizer_of(again);
      const auto loading = checkpointer(again, its_optimizer);
      const auto report = loading->load_latest();
      ASSERT_TRUE(report) << report.error().message;
      step(again, its_optimizer, 2);
      EXPECT_EQ(weights_sha256(again), weights_sha256(on_devices));
      for (std::size_t i = 0; i < places.size(); ++i) {
        EXPECT_EQ(again.layers[i]->weight.device(), device_of(0, places[i]));
      }
    }
  });
}

// A model in two stages: on threads of their own, or on two devices.
struct Stages {
  std::string model = "toy-model-parallel";
  std::vector<at::Device> devices = {at::kCPU, at::kCPU};
  std::int64_t micro_batches = 1;
  DistributedDataParallelOptions options;
};

constexpr std::int64_t kJointRows = 24;

// Parameters after some steps of the rank's part of joint batches.
std::vector<at::Tensor> train_stages(const Stages& stages, const GroupPtr& group) {
  const auto module = train::make_model(
      {.name = stages.model, .devices = stages.devices, .micro_batches = stages.micro_batches});
  fill(*module, 7);
  DistributedDataParallel<train::Model> model(module, group, stages.options);
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
  const std::int64_t rows = kJointRows / group->size();
  for (int step = 0; step < kSteps; ++step) {
    const auto seed = static_cast<std::uint64_t>(step);
    const auto part = [&](const at::Tensor& joint) {
      return joint.narrow(0, rows * group->rank(), rows);
    };
    model.zero_grad();
    const at::Tensor output =
        model(part(random_tensor({kJointRows, 10}, seed)).to(stages.devices.front()));
    const at::Tensor target = part(random_tensor({kJointRows, 5}, seed + 100));
    module->loss(output, target.to(output.device())).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : module->parameters()) {
    result.push_back(parameter.detach().cpu().clone());
  }
  return result;
}

TEST(ModelParallelTest, StagesTrainToTheBytesOfTheUndividedModel) {
  std::vector<at::Tensor> alone;
  run_ranks({1}, [&](const GroupPtr& group) {
    alone = train_stages({"toy", {at::kCPU}, 1, {}}, group);
  });
  for (const int world : {1, 2, 4}) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(mode.name + " world " + std::to_string(world));
      run_ranks({world}, [&](const GroupPtr& group) {
        const auto train = [&](const std::string& model, std::vector<at::Device> devices,
                               std::int64_t micro_batches = 1) {
          return train_stages({model, std::move(devices), micro_batches, mode.options}, group);
        };
        const auto whole = train("toy", {at::kCPU});
        const auto expect_same = [&](const std::vector<at::Tensor>& stages, const char* what) {
          for (std::size_t i = 0; i < whole.size(); ++i) {
            EXPECT_TRUE(same_bytes(stages[i], whole[i])) << what << ", parameter " << i;
            EXPECT_TRUE(at::allclose(stages[i], alone[i], 0, 1e-6)) << what << ", parameter " << i;
          }
        };
        expect_same(train("toy-model-parallel", {at::kCPU, at::kCPU}), "threads");
        if (world * 2 <= kHostDevices) {
          const int first = 2 * group->rank();
          expect_same(train("toy-model-parallel", {host_device(first), host_device(first + 1)}),
                      "devices");
          expect_same(train("toy-model-parallel", {host_device(first), at::kCPU}), "both");
        }
        // Sums over micro-batches are in another order.
        const auto pieces = train("toy-model-parallel", {at::kCPU, at::kCPU}, 3);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          EXPECT_TRUE(at::allclose(pieces[i], alone[i], 0, 1e-6)) << "parameter " << i;
        }
      });
    }
  }
}

}  // namespace
}  // namespace ddp::test
