#include "worker/ddp/averaging/optimizer_in_backward.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include "common/base/shared_text.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

std::set<const void*> identities_of(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> all;
  for (const at::Tensor& tensor : tensors) all.insert(tensor.unsafeGetTensorImpl());
  return all;
}

}  // namespace

// Averages a bucket as the reducer does without a hook, and updates what has come.
class OptimizerInBackward::Hook final : public CommHook {
 public:
  Hook(torch::optim::Optimizer& optimizer, ProcessGroup& group)
      : optimizer_(optimizer), group_(group) {
    for (const auto& of : optimizer.param_groups()) all_.push_back(of.params());
  }

  std::string name() const override { return "optimizer_in_backward"; }

  Future run(GradBucket& bucket) override {
    if (bucket.index() == 0) waiting_.clear();
    if (tags_.size() <= bucket.index()) tags_.resize(bucket.index() + 1);
    SharedText& tag = tags_[bucket.index()];
    if (tag.empty()) tag = fmt::format("bucket {}, updated in backward", bucket.index());
    const at::Tensor& buffer = bucket.buffer();
    const WorkPtr work = group_.all_reduce(buffer_of(buffer), ReduceOp::kAvg, {{}, tag});
    waiting_.push_back({work, &bucket});
    // The last one has nothing to hide behind.
    if (!bucket.is_last()) update_arrived();
    return Future(work, buffer).then([this](at::Tensor average) {
      // The first to be asked for does the rest of them; works are waited for in order.
      update_all();
      return average;
    });
  }

  std::size_t early_updates() const { return early_updates_; }

 private:
  struct Waiting {
    WorkPtr work;
    GradBucket* bucket;
  };

  void update_arrived() {
    while (!waiting_.empty() && waiting_.front().work->done()) {
      update(waiting_.front());
      waiting_.erase(waiting_.begin());
      ++early_updates_;
    }
  }
  void update_all() {
    for (const Waiting& each : waiting_) update(each);
    waiting_.clear();
  }

  // The optimizer's step with this bucket's parameters alone.
  void update(const Waiting& waiting) {
    waiting.work->wait();
    const std::vector<at::Tensor>& parameters = waiting.bucket->parameters();
    std::vector<at::Tensor> before;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor parameter = parameters[i];
      before.push_back(parameter.grad());
      parameter.mutable_grad() = waiting.bucket->gradients()[i];
    }
    const std::vector<std::vector<at::Tensor>>& part = part_of(*waiting.bucket);
    auto& groups = optimizer_.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].params() = part[i];
    optimizer_.step();
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].params() = all_[i];
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor parameter = parameters[i];
      parameter.mutable_grad() = std::move(before[i]);
    }
  }

  // What each group of the optimizer has of a bucket, which is made anew once.
  const std::vector<std::vector<at::Tensor>>& part_of(const GradBucket& bucket) {
    if (parts_.size() <= bucket.index()) parts_.resize(bucket.index() + 1);
    Part& part = parts_[bucket.index()];
    if (part.names == bucket.names()) return part.groups;
    part.names = bucket.names();
    const std::set<const void*> members = identities_of(bucket.parameters());
    part.groups.assign(all_.size(), {});
    for (std::size_t i = 0; i < all_.size(); ++i) {
      std::copy_if(all_[i].begin(), all_[i].end(), std::back_inserter(part.groups[i]),
                   [&members](const at::Tensor& parameter) {
                     return members.contains(parameter.unsafeGetTensorImpl());
                   });
    }
    return part.groups;
  }

  struct Part {
    std::vector<std::string> names;
    std::vector<std::vector<at::Tensor>> groups;
  };
  torch::optim::Optimizer& optimizer_;
  ProcessGroup& group_;
  std::vector<std::vector<at::Tensor>> all_;  // Of each of the optimizer's groups.
  std::vector<Part> parts_;                   // By bucket.
  std::vector<SharedText> tags_;              // Likewise.
  std::vector<Waiting> waiting_;              // Sent and not updated, in order.
  std::size_t early_updates_ = 0;
};

OptimizerInBackward::OptimizerInBackward(torch::optim::Optimizer& optimizer,
                                         DistributedDataParallelCore& model) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw std::invalid_argument(
        "OptimizerInBackward: LBFGS needs all gradients at once; use one that updates each element "
        "by itself");
  }
  if (model.input_type()) {
    throw std::invalid_argument(
        "OptimizerInBackward: the model has mixed_precision, whose parameters have another type "
        "during backward");
  }
  if (model.allows_unused_parameters()) {
    throw std::invalid_argument(
        "OptimizerInBackward: the model has find_unused_parameters or static_graph; when a bucket "
        "is updated, no rank knows yet which of its parameters nobody has used, and a step would "
        "change them");
  }
  Reducer& reducer = model.reducer();
  std::vector<at::Tensor> trained;
  for (std::size_t index = 0; index < reducer.num_parameters(); ++index) {
    trained.push_back(reducer.parameter(index).tensor);
    if (reducer.takes_hook(index)) continue;
    throw std::invalid_argument(
        fmt::format("OptimizerInBackward: the gradient of parameter {} is sparse or delayed",
                    reducer.parameter(index).name));
  }
  const std::set<const void*> known = identities_of(trained);
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (known.contains(parameter.unsafeGetTensorImpl())) continue;
      throw std::invalid_argument(
          fmt::format("OptimizerInBackward: the optimizer has a parameter, {}, that the model does "
                      "not train",
                      describe(parameter)));
    }
  }
  hook_ = std::make_shared<Hook>(optimizer, model.group());
  reducer.register_comm_hook(hook_);
}

std::size_t OptimizerInBackward::early_updates() const { return hook_->early_updates(); }

}  // namespace ddp
