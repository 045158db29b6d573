#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include "worker/ddp/tensors/stage_thread.h"

namespace ddp {

struct DataParallelOptions {
  // Where the replicas are; the first is the module itself and has to lie there, and so does the
  // output. Devices may appear several times: {kCPU, kCPU} are two replicas on two threads.
  std::vector<c10::Device> devices = {c10::kCPU, c10::kCPU};
  std::int64_t dim = 0;  // Along which input is cut and output is put together.
};

// What DataParallel does whatever the module's type.
class ModuleReplicas {
 public:
  // `others`: of devices[1], devices[2], ...: as the module, but for their values.
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module,
                 std::vector<std::shared_ptr<torch::nn::Module>> others,
                 DataParallelOptions options);
  // One part a replica, on its device; fewer if there is not as much input.
  std::vector<at::Tensor> scatter(const at::Tensor& input) const;
  // Gives the first `count` replicas the module's values, with a graph that leads back to it.
  void replicate(std::size_t count);
  // Each replica on a thread of its own, the module on the caller's. Rethrows the first's
  // exception.
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
// outputs together; gradients add up in the module's parameters. To compare with;
// DistributedDataParallel is the faster way, on one machine too: here one process runs everything
// that is not forward, parameters go to all devices and gradients to one in each step, and the
// backward of replicas on one device (the CPU) is one thread's.
//
//   ddp::DataParallel<Net> model(net, [] { return std::make_shared<Net>(); });
//   loss(model(input), target).backward();
//   optimizer.step();                       // over net's parameters, as without
//
// `make_replica` makes a module of the same structure, whose values do not matter; it may be left
// out where M is Cloneable. On the module's own device replicas share its parameters' memory.
// Buffers are copied to the replicas before each forward; what replicas but the first do to theirs
// (batch norm's statistics) is dropped, as in PyTorch. Dropout draws from one generator in any
// order.
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

  // Of a module whose forward takes one tensor and gives one.
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
  const std::shared_ptr<M>& module_ptr() const { return module_; }

 private:
  std::shared_ptr<M> module_;
  std::vector<std::shared_ptr<M>> others_;
  std::unique_ptr<ModuleReplicas> replicas_;
};

}  // namespace ddp
