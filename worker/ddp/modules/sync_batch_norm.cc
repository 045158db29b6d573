#include "worker/ddp/modules/sync_batch_norm.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_native.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// --- The operation. ---

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// All dimensions but the channels'.
std::vector<std::int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// [C] so that it meets [N, C, ...].
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

struct Statistics {
  at::Tensor mean;  // Of all ranks' samples, float64, on the CPU, as the variance.
  at::Tensor var;   // Biased.
  double count = 0;
};

// Of this rank's samples, flat: means, variances, count.
at::Tensor local_statistics(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const double count = static_cast<double>(input.numel() / std::max<std::int64_t>(channels, 1));
  at::Tensor flat = at::zeros({2 * channels + 1}, at::kDouble);
  flat[2 * channels] = count;
  if (count == 0) return flat;
  const at::Tensor values = is_half(input.scalar_type()) ? input.to(at::kFloat) : input;
  auto [var, mean] = at::var_mean(values, reduced_dims(input), /*unbiased=*/false);
  flat.narrow(0, 0, channels).copy_(mean);
  flat.narrow(0, channels, channels).copy_(var);
  return flat;
}

Statistics joint_statistics(const at::Tensor& input, ProcessGroup& group) {
  const std::int64_t channels = input.size(1);
  const at::Tensor own = local_statistics(input);
  const at::Tensor all = at::empty({group.size(), own.numel()}, at::kDouble);
  group.all_gather(buffer_of(own), buffer_of(all), {{}, "batch norm, forward"})->wait();
  Statistics joint;
  joint.count = all.select(1, 2 * channels).sum().item<double>();
  joint.mean = at::zeros({channels}, at::kDouble);
  joint.var = at::zeros({channels}, at::kDouble);
  if (joint.count == 0) return joint;
  for (int rank = 0; rank < group.size(); ++rank) {
    const double share = all[rank][2 * channels].item<double>() / joint.count;
    joint.mean.add_(all[rank].narrow(0, 0, channels), share);
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    const double share = all[rank][2 * channels].item<double>() / joint.count;
    const at::Tensor offset = all[rank].narrow(0, 0, channels) - joint.mean;
    joint.var.add_(all[rank].narrow(0, channels, channels) + offset * offset, share);
  }
  return joint;
}

void update_running(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(value.to(running.options()), momentum);
}

// A group among the values that autograd keeps for backward.
struct KeptGroup final : torch::CustomClassHolder {
  explicit KeptGroup(std::shared_ptr<ProcessGroup> kept) : group(std::move(kept)) {}
  std::shared_ptr<ProcessGroup> group;
};

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& running_mean, const at::Tensor& running_var,
                            double momentum, double eps,
                            const std::shared_ptr<ProcessGroup>& group) {
    const Statistics joint = joint_statistics(input, *group);
    if (joint.count > 0) {
      update_running(running_mean, joint.mean, momentum);
      update_running(running_var, joint.var * (joint.count / std::max(joint.count - 1, 1.0)),
                     momentum);
    }
    const auto type = is_half(input.scalar_type()) ? at::kFloat : input.scalar_type();
    const at::TensorOptions options = input.options().dtype(type);
    const at::Tensor mean = joint.mean.to(options);
    const at::Tensor var = joint.var.to(options);
    const at::Tensor inverse = (joint.var + eps).rsqrt().to(options);
    context->save_for_backward({input, weight, mean, inverse});
    context->saved_data["count"] = joint.count;
    context->saved_data["has_bias"] = bias.defined();
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<KeptGroup>(group));
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(
        at::native_batch_norm(input, weight, bias, mean, var, /*training=*/false, 0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& gradient = gradients[0];
    const double count = context->saved_data["count"].toDouble();
    const auto dims = reduced_dims(input);
    const at::Tensor mean = along_channels(saved[2], input);
    const at::Tensor inverse = along_channels(saved[3], input);
    const at::Tensor normalized = (input - mean) * inverse;
    const at::Tensor of_bias = gradient.sum(dims);
    const at::Tensor of_weight = (gradient * normalized).sum(dims);
    at::Tensor sums = at::cat({of_bias, of_weight}).to(at::TensorOptions(at::kDouble));
    sums = sums.contiguous();
    const auto kept = context->saved_data["group"].toCapsule();
    static_cast<KeptGroup&>(*kept)
        .group->all_reduce(buffer_of(sums), ReduceOp::kSum, {{}, "batch norm, backward"})
        ->wait();
    const at::Tensor means = (sums / std::max(count, 1.0)).to(of_bias.options());
    const std::int64_t channels = input.size(1);
    at::Tensor of_input = gradient - along_channels(means.narrow(0, 0, channels), input) -
                          normalized * along_channels(means.narrow(0, channels, channels), input);
    of_input = of_input * inverse;
    if (weight.defined()) of_input = of_input * along_channels(weight, input);
    const bool has_bias = context->saved_data["has_bias"].toBool();
    return {of_input.to(input.scalar_type()),
            weight.defined() ? of_weight.to(weight.scalar_type()) : at::Tensor(),
            has_bias ? of_bias : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

// --- Which layers are converted. ---

class ConvertedLayers {
 public:
  static ConvertedLayers& instance() {
    // Never destroyed: layers may be static objects.
    static auto* const layers = new ConvertedLayers;
    return *layers;
  }

  void set(const at::Tensor& key, const std::shared_ptr<torch::nn::Module>& layer,
           std::shared_ptr<ProcessGroup> group) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.key.expired(); });
    const at::TensorImpl* impl = key.unsafeGetTensorImpl();
    groups_.erase(impl);
    if (group) groups_.emplace(impl, Entry{Weak(key.getIntrusivePtr()), layer, std::move(group)});
  }

  // Null if the layer is not a converted one in training. In evaluation, a layer without running
  // statistics still normalizes with those of its batch, and then with its own alone.
  std::shared_ptr<ProcessGroup> find(const c10::optional<at::Tensor>& key) {
    if (!key || !key->defined()) return nullptr;
    const std::scoped_lock lock(mutex_);
    const auto found = groups_.find(key->unsafeGetTensorImpl());
    if (found == groups_.end()) return nullptr;
    const auto layer = found->second.layer.lock();
    return layer && layer->is_training() ? found->second.group : nullptr;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Entry {
    Weak key;  // As long as it is here nobody else has the address.
    std::weak_ptr<torch::nn::Module> layer;
    std::shared_ptr<ProcessGroup> group;
  };
  std::mutex mutex_;
  std::unordered_map<const at::TensorImpl*, Entry> groups_;
};

at::Tensor batch_norm(const at::Tensor& input, const c10::optional<at::Tensor>& weight,
                      const c10::optional<at::Tensor>& bias,
                      const c10::optional<at::Tensor>& running_mean,
                      const c10::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  if (training) {
    ConvertedLayers& layers = ConvertedLayers::instance();
    auto group = layers.find(running_mean);
    if (!group) group = layers.find(weight);
    if (group) {
      const auto of = [](const c10::optional<at::Tensor>& tensor) {
        return tensor ? *tensor : at::Tensor();
      };
      return sync_batch_norm(input, of(weight), of(bias), of(running_mean), of(running_var),
                             momentum, eps, group);
    }
  }
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum,
                                eps, cudnn_enabled);
}

// Once, for the life of the process: LibTorch has one kernel for all devices, which these precede.
void look_into_dispatcher() {
  static const auto* const libraries = [] {
    auto* made = new std::vector<std::unique_ptr<torch::Library>>;
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      made->push_back(
          std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
      made->back()->impl("batch_norm", TORCH_FN(batch_norm));
    }
    return made;
  }();
  (void)libraries;
}

template <typename Layer>
bool convert_layer(const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
                   const std::shared_ptr<ProcessGroup>& group) {
  auto* const layer = module->as<Layer>();
  if (layer == nullptr) return false;
  const at::Tensor& key = layer->running_mean.defined() ? layer->running_mean : layer->weight;
  if (!key.defined()) {
    throw std::invalid_argument(
        fmt::format("convert_sync_batchnorm: layer {} has neither weight nor running statistics, "
                    "by one of which it could be known; use ddp::sync_batch_norm in its place",
                    name.empty() ? "(the module itself)" : name));
  }
  ConvertedLayers::instance().set(key, module, group);
  return true;
}

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, double momentum, double eps,
                           const std::shared_ptr<ProcessGroup>& group) {
  if (input.dim() < 2) {
    throw std::invalid_argument(
        fmt::format("sync_batch_norm: the input is {}; expected [N, C, ...]", describe(input)));
  }
  return SyncBatchNormFunction::apply(input, weight, bias, running_mean, running_var, momentum, eps,
                                      group);
}

std::size_t convert_sync_batchnorm(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group) {
  using namespace torch::nn;
  look_into_dispatcher();
  std::size_t converted = 0;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const bool is_one = convert_layer<BatchNorm1dImpl>(item.key(), item.value(), group) ||
                        convert_layer<BatchNorm2dImpl>(item.key(), item.value(), group) ||
                        convert_layer<BatchNorm3dImpl>(item.key(), item.value(), group);
    if (is_one) ++converted;
  }
  return converted;
}

}  // namespace ddp
