// A step in a steady state makes no allocation of ours, neither on the training thread nor on the
// communication thread.
//
// A control run finds what LibTorch allocates for the same step: the bare module, with an empty
// hook on every parameter and an empty callback at the end of backward, queued by the first hook.
// That is the least that LibTorch does for code that must know when a gradient is ready and when
// backward is over. (It makes a list of callbacks when there is one.)
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include "tests/support/allocations.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/tensors/compat.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::test {
namespace {

using torch::autograd::variable_list;

constexpr int kWarm = 14;    // Behind the ten that take times, and the new buckets.
constexpr int kSteady = 64;  // And before the hundredth, which takes times again.

// Autograd's queues between threads grow once in a while: in 2.14 by three allocations, in one run
// and not in the next. Whatever we allocate, we allocate at every step, or we do not notice it.
constexpr long kLibTorchsQueues = kSteady / 8;

// Parameters of `width` elements, every gradient of which is the input, and a buffer.
struct Many : torch::nn::Module {
  Many(int count, std::int64_t width) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({width})));
    }
    register_buffer("running", torch::zeros({width}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& weight : weights) sum = sum + weight.dot(x);
    return sum;
  }
  std::vector<at::Tensor> weights;
};

// The control's hooks.
class IdleHooks {
 public:
  explicit IdleHooks(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      auto node = torch::autograd::impl::grad_accumulator(parameter);
      node->add_post_hook(compat::make_post_hook([this](const variable_list& outputs,
                                                        const variable_list& /*inputs*/) {
        if (!std::exchange(queued_, true)) {
          torch::autograd::Engine::get_default_engine().queue_callback([this] { queued_ = false; });
        }
        return outputs;
      }));
      nodes_.push_back(std::move(node));
    }
  }

 private:
  bool queued_ = false;
  std::vector<compat::NodePtr> nodes_;
};

// Everything of a step that is ours, as functions to call.
struct Step {
  std::function<void()> zero_grad;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::function<void()> reduce = [] {};
  std::shared_ptr<void> owner;
};

struct Case {
  std::string name;
  bool set_to_none = false;
  std::function<Step(const std::shared_ptr<Many>& module, const GroupPtr& group)> make;
  bool has_hooks = true;  // On parameters.
};
std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }

using Hook = Future (*)(ProcessGroup&, GradBucket&);

Case with_ddp(std::string name, bool views, bool set_to_none, Hook hook = nullptr,
              bool find_unused = false) {
  return {std::move(name), set_to_none,
          [=](const std::shared_ptr<Many>& module, const GroupPtr& group) {
            DistributedDataParallelOptions options;
            options.gradient_as_bucket_view = views;
            options.find_unused_parameters = find_unused;
            options.bucket_cap_mb =
                3.5 * 4 / 1024 / 1024 * static_cast<double>(module->weights.front().numel());
            auto model = std::make_shared<DistributedDataParallel<Many>>(module, group, options);
            if (hook != nullptr) model->register_comm_hook(group, hook);
            Step step;
            step.zero_grad = [=] { model->zero_grad(set_to_none); };
            step.forward = [=](const at::Tensor& x) { return model->forward(x); };
            step.owner = model;
            return step;
          }};
}

Case with_step_mode(std::string name, bool views, bool set_to_none, Hook hook = nullptr) {
  struct Both {
    Both(const std::shared_ptr<Many>& module, const GroupPtr& group,
         const DistributedOptimizerOptions& options)
        : sgd(module->weights, 0.1), optimizer(sgd, group, options) {}
    torch::optim::SGD sgd;
    DistributedOptimizer optimizer;
  };
  return {std::move(name), set_to_none,
          [=](const std::shared_ptr<Many>& module, const GroupPtr& group) {
            DistributedOptimizerOptions options;
            options.gradient_as_bucket_view = views;
            auto both = std::make_shared<Both>(module, group, options);
            if (hook != nullptr) {
              both->optimizer.register_comm_hook(make_comm_hook(group, hook, "hook"));
            }
            Step step;
            step.zero_grad = [=] { both->optimizer.zero_grad(set_to_none); };
            step.forward = [=](const at::Tensor& x) { return module->forward(x); };
            step.reduce = [=] { both->optimizer.reduce_gradients(); };
            step.owner = both;
            return step;
          },
          false};
}

std::vector<Case> cases() {
  return {
      with_ddp("plain", false, false),
      with_ddp("plain, gradients to none", false, true),
      with_ddp("gradient_as_bucket_view", true, false),
      with_ddp("gradient_as_bucket_view, gradients to none", true, true),
      with_ddp("find_unused_parameters", true, false, nullptr, true),
      with_ddp("allreduce_hook", true, false, allreduce_hook),
      with_ddp("fp16_compress_hook", false, false, fp16_compress_hook),
      with_ddp("fp16_compress_hook with views", true, true, fp16_compress_hook),
      with_step_mode("step mode", false, false),
      with_step_mode("step mode with views", true, true),
      with_step_mode("step mode, fp16_compress_hook", true, false, fp16_compress_hook),
  };
}

// Nothing of ours: what the cases are compared with.
Step control(const std::shared_ptr<Many>& module, const Case& each) {
  Step step;
  step.zero_grad = [module, to_none = each.set_to_none] {
    for (const at::Tensor& weight : module->weights) {
      at::Tensor& gradient = weight.mutable_grad();
      if (!gradient.defined()) continue;
      if (to_none) {
        gradient.reset();
      } else {
        std::memset(gradient.data_ptr(), 0, gradient.nbytes());
      }
    }
  };
  step.forward = [module](const at::Tensor& x) { return module->forward(x); };
  if (each.has_hooks) step.owner = std::make_shared<IdleHooks>(module->weights);
  return step;
}

// What two ranks allocate in kSteady steps.
long allocations_of(const Case& each, bool is_control, std::int64_t width) {
  long counted = -1;
  run_ranks({2}, [&](const GroupPtr& group) {
    at::set_num_threads(1);
    // More operations at once than a step has.
    std::vector<WorkPtr> works(16);
    for (WorkPtr& work : works) work = group->barrier();
    for (WorkPtr& work : works) std::exchange(work, nullptr)->wait();
    auto module = std::make_shared<Many>(10, width);
    const Step step = is_control ? control(module, each) : each.make(module, group);
    const at::Tensor x = torch::ones({width});
    for (int number = 0; number < kWarm + kSteady; ++number) {
      if (number == kWarm) {
        group->barrier()->wait();
        if (group->rank() == 0) allocations::arm();
        group->barrier()->wait();
      }
      step.zero_grad();
      step.forward(x).backward();
      step.reduce();
    }
    group->barrier()->wait();
    if (group->rank() == 0) counted = allocations::disarm();
    group->barrier()->wait();
  });
  return counted;
}

class SteadyStep : public testing::TestWithParam<Case> {};

TEST_P(SteadyStep, AllocatesNothingOfOurs) {
  if (!allocations::kCounting) GTEST_SKIP() << "a sanitizer has its own malloc";
  for (const std::int64_t width : {4, 40'000}) {
    const long bare = allocations_of(GetParam(), true, width);
    const long with_ours = allocations_of(GetParam(), false, width);
    const double steps = 2.0 * kSteady;
    std::printf(
        "%s, 10 parameters of %ld elements: %.2f allocations a step and rank, of them %.2f "
        "LibTorch's\n",
        GetParam().name.c_str(), static_cast<long>(width), static_cast<double>(with_ours) / steps,
        static_cast<double>(bare) / steps);
    EXPECT_LE(with_ours, bare + kLibTorchsQueues);
    if (with_ours > bare + kLibTorchsQueues) allocations::print_own();
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SteadyStep, testing::ValuesIn(cases()));

}  // namespace
}  // namespace ddp::test
