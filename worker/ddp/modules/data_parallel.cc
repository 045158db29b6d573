#include "worker/ddp/modules/data_parallel.h"

#include <exception>
#include <latch>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "worker/ddp/tensors/compat.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/stage_thread.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

using torch::autograd::variable_list;

// The gradient of a parameter that several replicas have used.
struct SumGradients final : torch::autograd::Node {
  explicit SumGradients(const c10::Device& on) : device(on) {}
  variable_list apply(variable_list&& gradients) override {
    const at::NoGradGuard no_grad;
    at::Tensor sum;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      const at::Tensor here = gradient.to(device);
      sum = sum.defined() ? sum + here : here;
    }
    return {sum};
  }
  c10::Device device;
};

// Pairs tensors of the module with those of its replicas.
template <typename Shared>
std::vector<Shared> pair_up(const std::vector<std::vector<NamedTensor>>& all, const char* what) {
  std::vector<Shared> pairs;
  for (std::size_t index = 0; index < all.front().size(); ++index) {
    const NamedTensor& own = all.front()[index];
    Shared shared{own.tensor, {}};
    for (std::size_t replica = 1; replica < all.size(); ++replica) {
      const bool fits = all[replica].size() == all.front().size() &&
                        all[replica][index].name == own.name &&
                        all[replica][index].tensor.sizes() == own.tensor.sizes() &&
                        all[replica][index].tensor.scalar_type() == own.tensor.scalar_type();
      if (!fits) {
        throw std::invalid_argument(
            fmt::format("DataParallel: replica {} lacks the module's {} {}, {}", replica, what,
                        own.name, describe(own.tensor)));
      }
      shared.replicas.push_back(all[replica][index].tensor);
    }
    pairs.push_back(std::move(shared));
  }
  return pairs;
}

}  // namespace

ModuleReplicas::ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                               std::vector<std::shared_ptr<torch::nn::Module>> others,
                               DataParallelOptions options)
    : module_(std::move(module)), others_(std::move(others)), options_(std::move(options)) {
  if (options_.devices.empty()) {
    throw std::invalid_argument("DataParallel: no devices; name at least the module's own");
  }
  std::vector<std::vector<NamedTensor>> parameters{state_of(*module_).parameters};
  std::vector<std::vector<NamedTensor>> buffers{state_of(*module_).buffers};
  for (const NamedTensor& parameter : parameters.front()) {
    if (parameter.tensor.device() == options_.devices.front()) continue;
    throw std::invalid_argument(fmt::format(
        "DataParallel: parameter {} is on {}, the first device is {}; move the module there",
        parameter.name, parameter.tensor.device().str(), options_.devices.front().str()));
  }
  for (const auto& other : others_) {
    parameters.push_back(state_of(*other).parameters);
    buffers.push_back(state_of(*other).buffers);
    threads_.push_back(std::make_unique<StageThread>());
  }
  parameters_ = pair_up<Shared>(parameters, "parameter");
  buffers_ = pair_up<Shared>(buffers, "buffer");
}

ModuleReplicas::~ModuleReplicas() = default;

std::vector<at::Tensor> ModuleReplicas::scatter(const at::Tensor& input) const {
  const auto devices = static_cast<std::int64_t>(options_.devices.size());
  std::vector<at::Tensor> parts = input.chunk(devices, options_.dim);
  for (std::size_t index = 0; index < parts.size(); ++index)
    parts[index] = parts[index].to(options_.devices[index]);
  return parts;
}

void ModuleReplicas::replicate(std::size_t count) {
  for (Shared& shared : parameters_) {
    compat::NodePtr sum;
    for (std::size_t index = 0; index + 1 < count; ++index) {
      at::Tensor& replica = shared.replicas[index];
      const at::Tensor values = shared.source.detach().to(replica.device());
      if (!is_same_memory(replica, values)) replica.set_data(values);
      if (!at::GradMode::is_enabled()) continue;
      if (!shared.source.requires_grad()) {
        replica.detach_();
        replica.requires_grad_(false);
        continue;
      }
      if (!sum) {
        sum = compat::make_node<SumGradients>(shared.source.device());
        sum->set_next_edges(torch::autograd::collect_next_edges(shared.source));
      }
      torch::autograd::set_history(replica, sum);
    }
  }
  const at::NoGradGuard no_grad;
  for (Shared& shared : buffers_) {
    for (std::size_t index = 0; index + 1 < count; ++index)
      shared.replicas[index].copy_(shared.source);
  }
  for (const auto& other : others_) {
    if (other->is_training() != module_->is_training()) other->train(module_->is_training());
  }
}

void ModuleReplicas::parallel_apply(std::size_t count,
                                    const std::function<void(std::size_t)>& task) {
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&](std::size_t index) {
    try {
      task(index);
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  std::latch left(static_cast<std::ptrdiff_t>(count) - 1);
  const at::ThreadLocalState state;
  for (std::size_t index = 1; index < count; ++index) {
    threads_[index - 1]->post([&, index] {
      {
        const at::ThreadLocalStateGuard guard(state);
        run(index);
      }
      left.count_down();
    });
  }
  run(0);
  left.wait();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

at::Tensor ModuleReplicas::gather(const std::vector<at::Tensor>& outputs) const {
  if (outputs.size() == 1) return outputs.front();
  std::vector<at::Tensor> here;
  for (const at::Tensor& output : outputs) here.push_back(output.to(options_.devices.front()));
  return at::cat(here, options_.dim);
}

}  // namespace ddp
