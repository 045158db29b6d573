#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

namespace ddp {

class StageThread;

struct DataParallelOptions {
  // The replicas' devices. The first replica is the module itself, which must be on the first
  // device; the output is there, too. A device may appear several times: {kCPU, kCPU} means two
  // replicas on two threads.
  std::vector<c10::Device> devices = {c10::kCPU, c10::kCPU};
  std::int64_t dim = 0;  // The dimension along which input is split and output is joined.
};

// The part of DataParallel that does not depend on the module's type.
class ModuleReplicas {
 public:
  // `others`: the replicas on devices[1], devices[2], ...: like the module except for their values.
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                 std::vector<std::shared_ptr<torch::nn::Module>> others,
                 DataParallelOptions options);
  ~ModuleReplicas();
  ModuleReplicas(const ModuleReplicas&) = delete;
  ModuleReplicas& operator=(const ModuleReplicas&) = delete;

  // One part for each replica, on its device; fewer if there is less input.
  std::vector<at::Tensor> scatter(const at::Tensor& input) const;
  // Gives the first `count` replicas the module's values, with a graph that leads back to it.
  void replicate(std::size_t count);
  // Runs each replica on its own thread, and the module on the caller's. Rethrows the exception of
  // the lowest replica that failed.
  void parallel_apply(std::size_t count, const std::function<void(std::size_t)>& task);
  at::Tensor gather(const std::vector<at::Tensor>& outputs) const;

 private:
  struct Shared {
    at::Tensor source;                 // The module's.
    std::vector<at::Tensor> replicas;  // The others'.
  };
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::shared_ptr<torch::nn::Module>> others_;
  DataParallelOptions options_;
  std::vector<Shared> parameters_;
  std::vector<Shared> buffers_;
  std::vector<std::unique_ptr<StageThread>> threads_;
};

// One process, several devices: PyTorch's torch.nn.DataParallel. Forward cuts the batch into a part
// for each device, runs a replica of the module on each in a thread of its own, and puts the
// outputs together; gradients add up in the module's parameters. It is here for comparison;
// DistributedDataParallel is faster, on one machine too. Here one process runs everything but
// forward; each step copies the parameters to all devices and the gradients to one; and one thread
// runs the backward of all replicas on the same device (the CPU).
//
//   ddp::DataParallel<Net> model(net, [] { return std::make_shared<Net>(); });
//   loss(model(input), target).backward();
//   optimizer.step();                       // over net's parameters, as without
//
// `make_replica` makes a module of the same structure, whose values do not matter; it may be left
// out where M is Cloneable. On the module's own device replicas share its parameters' memory.
// Buffers are copied to the replicas before each forward; changes that other replicas than the
// first make to theirs (batch norm's statistics) are dropped, as in PyTorch. Dropout in all
// replicas draws from one generator, in no fixed order.
//
// Used by one thread. Throws std::invalid_argument for no devices, a module that is not on the
// first one, or replicas whose parameters or buffers differ from the module's, naming the first.
template <typename M>
class DataParallel {
 public:
  using Factory = std::function<std::shared_ptr<M>()>;
  DataParallel(std::shared_ptr<M> module, const Factory& make_replica,
               const DataParallelOptions& options = {})
      : module_(std::move(module)) {
    for (std::size_t i = 1; i < options.devices.size(); ++i) {
      others_.push_back(make_replica());
      others_.back()->to(options.devices[i]);
    }
    replicas_ = std::make_unique<ModuleReplicas>(
        module_, std::vector<std::shared_ptr<torch::nn::Module>>(others_.begin(), others_.end()),
        options);
  }
  explicit DataParallel(const std::shared_ptr<M>& module,
                        const DataParallelOptions& options = {}) requires
      std::derived_from<M, torch::nn::Cloneable<M>>
      : DataParallel(
            module, [&module] { return std::dynamic_pointer_cast<M>(module->clone()); }, options) {}

  // For a module whose forward takes one tensor and returns one.
  at::Tensor forward(const at::Tensor& input) {
    const std::vector<at::Tensor> parts = replicas_->scatter(input);
    replicas_->replicate(parts.size());
    std::vector<at::Tensor> outputs(parts.size());
    replicas_->parallel_apply(parts.size(), [&](std::size_t index) {
      M& replica = index == 0 ? *module_ : *others_[index - 1];
      outputs[index] = replica.forward(parts[index]);
    });
    return replicas_->gather(outputs);
  }
  at::Tensor operator()(const at::Tensor& input) { return forward(input); }

  M& module() { return *module_; }

 private:
  std::shared_ptr<M> module_;
  std::vector<std::shared_ptr<M>> others_;
  std::unique_ptr<ModuleReplicas> replicas_;
};

}  // namespace ddp
