#include "worker/train/models/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <future>
#include <stdexcept>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "common/base/check.h"
#include "worker/ddp/tensors/compat.h"

namespace ddp::train {

using torch::autograd::variable_list;

struct Pipeline::Part {
  Stage stage;
  StageThread thread;
};

namespace {

// What one thread hands to another: a tensor or an exception.
using Promise = std::promise<at::Tensor>;
using Handover = std::shared_future<at::Tensor>;

void fulfil(Promise& promise, const std::function<at::Tensor()>& make) {
  try {
    promise.set_value(make());
  } catch (...) {
    promise.set_exception(std::current_exception());
  }
}

// Whether adding to the tensor in place leaves all other tensors unchanged.
bool is_own(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 &&
         tensor.is_non_overlapping_and_dense();
}

void add_to(variable_list& sums, variable_list gradients) {
  const at::NoGradGuard no_grad;
  if (sums.empty()) {
    sums = std::move(gradients);
    return;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!gradients[i].defined()) continue;
    if (!sums[i].defined()) {
      sums[i] = std::move(gradients[i]);
    } else if (is_own(sums[i])) {
      sums[i].add_(gradients[i]);
    } else {
      sums[i] = sums[i].add(gradients[i]);
    }
  }
}

std::vector<at::Tensor> trainable_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

}  // namespace

// Autograd's nodes and the tasks that wait on the stage threads keep it alive. Only one thread at a
// time uses a member of Micro or Results: handovers order their uses.
class Pipeline::Flight : public std::enable_shared_from_this<Flight> {
 public:
  Flight(std::shared_ptr<Part> front, std::shared_ptr<Part> back, std::vector<at::Tensor> inputs)
      : front_(std::move(front)),
        back_(std::move(back)),
        front_trainable_(trainable_of(front_->stage.parameters)),
        back_trainable_(trainable_of(back_->stage.parameters)),
        with_graph_(at::GradMode::is_enabled() &&
                    !(front_trainable_.empty() && back_trainable_.empty())),
        inputs_(std::move(inputs)),
        micros_(inputs_.size()) {}

  bool with_graph() const { return with_graph_; }
  const variable_list& front_trainable() const { return front_trainable_; }
  const variable_list& back_trainable() const { return back_trainable_; }

  // On the training thread. Runs all micro-batches through both stages. The output has no graph.
  at::Tensor forward();

  // On backward's thread. back_gradients() starts both stages and waits for the back. If it was not
  // called, front_gradients() returns nothing.
  variable_list back_gradients(const at::Tensor& gradient);
  variable_list front_gradients();

 private:
  struct Micro {
    at::Tensor front_output;  // With the front's graph.
    at::Tensor back_input;    // The same values as a leaf of the back's graph.
    at::Tensor back_output;
  };
  struct Results {
    variable_list sums;
    Promise done;  // Only a signal: its tensor is undefined.
  };

  at::Tensor run_front(std::size_t micro);
  at::Tensor run_back(std::size_t micro, const at::Tensor& boundary);
  at::Tensor differentiate_back(std::size_t micro, const at::Tensor& gradient);
  void differentiate_front(std::size_t micro, const at::Tensor& gradient);
  void start_backward(const at::Tensor& gradient);

  std::shared_ptr<Part> front_;
  std::shared_ptr<Part> back_;
  variable_list front_trainable_;
  variable_list back_trainable_;
  bool with_graph_;
  std::vector<at::Tensor> inputs_;
  std::vector<Micro> micros_;
  std::vector<std::int64_t> rows_;  // Of each micro-batch's output.
  Results front_results_;
  Results back_results_;
  bool started_ = false;
};

at::Tensor Pipeline::Flight::run_front(std::size_t micro) {
  const at::AutoGradMode mode(with_graph_);
  at::Tensor output = front_->stage.forward(inputs_[micro]);
  if (with_graph_) micros_[micro].front_output = output;
  return output.detach();
}

at::Tensor Pipeline::Flight::run_back(std::size_t micro, const at::Tensor& boundary) {
  const at::AutoGradMode mode(with_graph_);
  if (!with_graph_) return back_->stage.forward(boundary);
  Micro& current = micros_[micro];
  current.back_input = boundary.detach().set_requires_grad(current.front_output.requires_grad());
  current.back_output = back_->stage.forward(current.back_input);
  return current.back_output.detach();
}

at::Tensor Pipeline::Flight::forward() {
  std::vector<Handover> outputs;
  for (std::size_t micro = 0; micro < micros_.size(); ++micro) {
    auto boundary = std::make_shared<Promise>();
    auto output = std::make_shared<Promise>();
    outputs.push_back(output->get_future().share());
    front_->thread.post([self = shared_from_this(), micro, boundary] {
      fulfil(*boundary, [&] { return self->run_front(micro); });
    });
    back_->thread.post(
        [self = shared_from_this(), micro, output, input = boundary->get_future().share()] {
          fulfil(*output, [&] { return self->run_back(micro, input.get()); });
        });
  }
  // Wait for all before get() can throw: until they are ready, the threads read the caller's input.
  for (const Handover& output : outputs) output.wait();
  std::vector<at::Tensor> results;
  for (const Handover& output : outputs) {
    results.push_back(output.get());
    rows_.push_back(results.back().size(0));
  }
  return results.size() == 1 ? results[0].detach() : at::cat(results);
}

at::Tensor Pipeline::Flight::differentiate_back(std::size_t micro, const at::Tensor& gradient) {
  Micro& current = micros_[micro];
  variable_list inputs = back_trainable_;
  const bool on_to_front = current.back_input.requires_grad();
  if (on_to_front) inputs.push_back(current.back_input);
  variable_list gradients = torch::autograd::grad({current.back_output}, inputs, {gradient}, false,
                                                  false, /*allow_unused=*/true);
  at::Tensor boundary;
  if (on_to_front) {
    boundary = gradients.back();
    gradients.pop_back();
    if (!boundary.defined()) boundary = at::zeros_like(current.back_input);
  }
  current.back_input.reset();
  current.back_output.reset();
  add_to(back_results_.sums, std::move(gradients));
  return boundary;
}

void Pipeline::Flight::differentiate_front(std::size_t micro, const at::Tensor& gradient) {
  const at::Tensor output = std::move(micros_[micro].front_output);
  if (!output.requires_grad()) return;
  add_to(front_results_.sums, torch::autograd::grad({output}, front_trainable_, {gradient}, false,
                                                    false, /*allow_unused=*/true));
}

void Pipeline::Flight::start_backward(const at::Tensor& gradient) {
  const std::vector<at::Tensor> gradients = gradient.split_with_sizes(rows_, 0);
  std::vector<Handover> boundaries;
  for (std::size_t micro = 0; micro < micros_.size(); ++micro) {
    auto boundary = std::make_shared<Promise>();
    boundaries.push_back(boundary->get_future().share());
    back_->thread.post([self = shared_from_this(), micro, boundary, given = gradients[micro]] {
      fulfil(*boundary, [&] { return self->differentiate_back(micro, given); });
    });
  }
  back_->thread.post([self = shared_from_this(), boundaries] {
    fulfil(self->back_results_.done, [&] {
      for (const Handover& boundary : boundaries) boundary.get();
      return at::Tensor();
    });
  });
  front_->thread.post([self = shared_from_this(), boundaries] {
    fulfil(self->front_results_.done, [&] {
      for (std::size_t micro = 0; micro < boundaries.size(); ++micro) {
        self->differentiate_front(micro, boundaries[micro].get());
      }
      return at::Tensor();
    });
  });
}

variable_list Pipeline::Flight::back_gradients(const at::Tensor& gradient) {
  if (std::exchange(started_, true)) {
    throw std::logic_error(
        "a second backward through the same forward of a model in two stages; the first one freed "
        "its graph");
  }
  start_backward(gradient);
  back_results_.done.get_future().get();
  return std::move(back_results_.sums);
}

variable_list Pipeline::Flight::front_gradients() {
  if (!started_) return {};
  front_results_.done.get_future().get();
  return std::move(front_results_.sums);
}

// Gives the gradients of the front's parameters. Its input is a dummy number; it only orders this
// node after the back's.
struct Pipeline::FrontNode final : public torch::autograd::Node {
  variable_list apply(variable_list&& /*link*/) override {
    variable_list gradients = flight->front_gradients();
    gradients.resize(num_outputs());
    return gradients;
  }
  std::string name() const override { return "PipelineFrontBackward"; }

  std::shared_ptr<Flight> flight;
};

// Takes the gradient of the output. Gives the dummy number for the front's node, and the gradients
// of the back's parameters.
struct Pipeline::BackNode final : public torch::autograd::Node {
  variable_list apply(variable_list&& output) override {
    variable_list gradients;
    if (output[0].defined()) gradients = flight->back_gradients(output[0]);
    gradients.insert(gradients.begin(), at::zeros({}));
    gradients.resize(num_outputs());
    return gradients;
  }
  std::string name() const override { return "PipelineBackBackward"; }

  std::shared_ptr<Flight> flight;
};

Pipeline::Pipeline(Stage front, Stage back, std::int64_t micro_batches)
    : front_(std::make_shared<Part>()),
      back_(std::make_shared<Part>()),
      micro_batches_(micro_batches) {
  DDP_CHECK(micro_batches > 0, "{} micro-batches", micro_batches);
  front_->stage = std::move(front);
  back_->stage = std::move(back);
}

Pipeline::~Pipeline() {
  // A flight may keep a part alive longer, and its last owner could be the part's own thread, which
  // cannot join itself. So the threads stop here.
  front_->thread.stop();
  back_->thread.stop();
}

at::Tensor Pipeline::forward(const at::Tensor& input) {
  const auto flight =
      std::make_shared<Flight>(front_, back_, cut_batch(input.detach(), micro_batches_));
  at::Tensor output = flight->forward();
  if (!flight->with_graph()) return output;

  const auto edges = [](const variable_list& parameters) {
    torch::autograd::edge_list result;
    for (const at::Tensor& parameter : parameters) {
      result.push_back(torch::autograd::impl::gradient_edge(parameter));
    }
    return result;
  };
  const auto front_node = compat::make_node<FrontNode>();
  front_node->flight = flight;
  front_node->set_next_edges(edges(flight->front_trainable()));
  at::Tensor link = at::zeros({});
  torch::autograd::set_history(link, front_node);
  const auto back_node = compat::make_node<BackNode>();
  back_node->flight = flight;
  torch::autograd::edge_list back_edges = edges(flight->back_trainable());
  back_edges.insert(back_edges.begin(), torch::autograd::impl::gradient_edge(link));
  back_node->set_next_edges(std::move(back_edges));
  torch::autograd::set_history(output, back_node);
  return output;
}

std::vector<at::Tensor> cut_batch(const at::Tensor& batch, std::int64_t parts) {
  const std::int64_t samples = batch.size(0);
  return batch.tensor_split(std::clamp<std::int64_t>(parts, 1, std::max<std::int64_t>(samples, 1)));
}

}  // namespace ddp::train
