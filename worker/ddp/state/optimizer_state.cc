#include "worker/ddp/state/optimizer_state.h"

#include <concepts>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cxxabi.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "worker/ddp/state/sharded_tensor.h"
#include "worker/ddp/tensors/compat.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/tensors/value_moves.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp {
namespace {

using nlohmann::json;

// --- Which fields there are, under LibTorch's names. ---

template <typename Visit>
void fields(torch::optim::SGDOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("momentum", o.momentum());
  visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay());
  visit("nesterov", o.nesterov());
}
template <typename Visit>
void fields(torch::optim::SGDParamState& s, Visit visit) {
  visit("momentum_buffer", s.momentum_buffer());
}

// Adam and AdamW have the same fields in unrelated types.
template <typename T, typename... Types>
concept OneOf = (std::same_as<T, Types> || ...);
template <OneOf<torch::optim::AdamOptions, torch::optim::AdamWOptions> Options, typename Visit>
void fields(Options& o, Visit visit) {
  visit("lr", o.lr());
  visit("betas", o.betas());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
}
template <OneOf<torch::optim::AdamParamState, torch::optim::AdamWParamState> State, typename Visit>
void fields(State& s, Visit visit) {
  visit("step", s.step());
  visit("exp_avg", s.exp_avg());
  visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}

template <typename Visit>
void fields(torch::optim::AdagradOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("lr_decay", o.lr_decay());
  visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value());
  visit("eps", o.eps());
}
template <typename Visit>
void fields(torch::optim::AdagradParamState& s, Visit visit) {
  visit("step", s.step());
  visit("sum", s.sum());
}

template <typename Visit>
void fields(torch::optim::RMSpropOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("alpha", o.alpha());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum());
  visit("centered", o.centered());
}
template <typename Visit>
void fields(torch::optim::RMSpropParamState& s, Visit visit) {
  visit("step", s.step());
  visit("square_avg", s.square_avg());
  visit("momentum_buffer", s.momentum_buffer());
  visit("grad_avg", s.grad_avg());
}

// --- Which parameter a tensor of the optimizer's groups is, or is a part of. ---

struct Place {
  std::string name;
  at::Tensor parameter;   // The whole.
  bool is_part = false;   // Of the rest only a part has the values:
  std::size_t begin = 0;  // Elements of the parameter's memory.
  std::size_t elements = 0;
  bool is_common = false;             // Every rank has it, beside a part of its own.
  std::vector<std::size_t> counts{};  // Elements of all ranks' own parts.
};
using Places = std::unordered_map<const at::TensorImpl*, Place>;

// --- Writing and reading a field. ---

struct FieldWriter {
  json& scalars;
  std::vector<StateTensor>& tensors;
  const std::string& prefix;
  const Place* place = nullptr;  // Null for what belongs to a group.

  void operator()(const char* field, const at::Tensor& tensor) const {
    if (!tensor.defined()) return;
    if (place == nullptr || !place->is_part) {
      tensors.push_back({prefix + field, tensor});
    } else if (place->is_common) {
      add_common(prefix + field, tensor);
    } else {
      const at::Tensor whole = at::empty(place->parameter.sizes(),
                                         at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
      tensors.push_back({prefix + field, whole,
                         std::make_shared<const ShardedTensor>(ShardedTensor{
                             place->parameter, place->counts, tensor, at::Tensor()})});
    }
  }
  // To the rank's own part, which comes before it.
  void add_common(const std::string& name, const at::Tensor& tensor) const {
    for (auto state = tensors.rbegin(); state != tensors.rend(); ++state) {
      if (state->name != name) continue;
      ShardedTensor parts = *state->parts;
      parts.common = tensor;
      state->parts = std::make_shared<const ShardedTensor>(std::move(parts));
      return;
    }
  }
  template <typename Scalar>
  void operator()(const char* field, const Scalar& scalar) const {
    scalars[field] = scalar;
  }
};

// A difference between checkpoint and optimizer. Thrown inside this file only.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ReadFailure {
  Error error;
};

// The tensors that an optimizer has for a parameter, by field.
struct PresentTensors {
  std::map<std::string, at::Tensor>& tensors;

  void operator()(const char* field, const at::Tensor& tensor) const {
    if (tensor.defined()) tensors[field] = tensor;
  }
  template <typename Scalar>
  void operator()(const char* /*field*/, const Scalar& /*scalar*/) const {}
};

struct FieldReader {
  const json& scalars;
  TensorSource& source;
  const std::string& prefix;
  const Place& place;
  // Tensors that fit are overwritten in the end, by `moves`, because new memory costs more than a
  // copy.
  const std::map<std::string, at::Tensor>& present;
  std::vector<ValueMove>& moves;

  void operator()(const char* field, at::Tensor& tensor) const {
    const checkpoint::TensorRecord* record = source.find(prefix + field, checkpoint::kReplicated);
    if (record == nullptr) {
      tensor = at::Tensor();
      return;
    }
    if (place.parameter.sizes().vec() != record->shape) {
      throw Mismatch(fmt::format("\"{}\" has another shape than its parameter, {}", record->name,
                                 describe(place.parameter)));
    }
    auto read = source.view(*record);
    if (!read) throw ReadFailure{read.error()};
    const at::NoGradGuard no_grad;
    // What the optimizer has the state of, with its device and strides.
    const at::Tensor like =
        place.is_part ? at::empty({0}, place.parameter.options()) : place.parameter;
    at::Tensor values = place.is_part ? part_of(*read) : *read;
    if (const auto found = present.find(field); found != present.end()) {
      const at::Tensor& own = found->second;
      if (own.scalar_type() == values.scalar_type() && own.device() == like.device() &&
          own.sizes() == values.sizes() && (place.is_part || own.strides() == like.strides())) {
        tensor = own;
        moves.push_back({own, std::move(values)});
        return;
      }
    }
    tensor = place.is_part ? at::empty_like(values)
                           : at::empty_like(like, like.options().dtype(values.scalar_type()));
    tensor.copy_(values);
  }
  // Of a whole tensor, row-major, this rank's elements in the order of the parameter's memory.
  at::Tensor part_of(const at::Tensor& whole) const {
    at::Tensor packed = whole;
    if (!place.parameter.is_contiguous()) {
      packed = at::empty_strided(whole.sizes(), packed_strides(place.parameter), whole.options());
      packed.copy_(whole);
    }
    return packed.as_strided({static_cast<std::int64_t>(place.elements)}, {1},
                             packed.storage_offset() + static_cast<std::int64_t>(place.begin));
  }
  template <typename Scalar>
  void operator()(const char* field, Scalar& scalar) const {
    scalar = scalars.at(field).template get<Scalar>();
  }
};

std::string class_name(const torch::optim::Optimizer& optimizer) {
  const char* mangled = typeid(optimizer).name();
  int status = 0;
  char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : mangled;
  std::free(plain);
  return name;
}

Places whole_parameters(const torch::nn::Module& module) {
  Places places;
  for (const NamedTensor& item : state_of(module).parameters) {
    places[item.tensor.unsafeGetTensorImpl()] = {.name = item.name, .parameter = item.tensor};
  }
  return places;
}

Places divided_parameters(const ZeroRedundancyOptimizer& optimizer,
                          const torch::nn::Module& module) {
  Places places = whole_parameters(module);
  for (const ZeroRedundancyOptimizer::Part& part : optimizer.parts()) {
    const auto whole = places.find(part.parameter.unsafeGetTensorImpl());
    if (part.counts.empty() || whole == places.end()) continue;
    places[part.tensor.unsafeGetTensorImpl()] = {whole->second.name, part.parameter, true,
                                                 part.begin,         part.elements,  part.is_common,
                                                 part.counts};
  }
  return places;
}

template <typename Options, typename ParamState>
class TypedOptimizerState final : public OptimizerState {
 public:
  TypedOptimizerState(const char* type, torch::optim::Optimizer& optimizer,
                      std::function<Places()> places)
      : type_(type), optimizer_(optimizer), places_(std::move(places)) {}

  OptimizerSnapshot snapshot(const std::string& prefix) const override {
    const Places places = places_();
    OptimizerSnapshot result{
        {{"type", type_}, {"groups", json::array()}, {"state", json::object()}}, {}};
    const auto& all_state = optimizer_.state();
    for (const auto& group : optimizer_.param_groups()) {
      json options = json::object();
      auto copy = static_cast<const Options&>(group.options());
      fields(copy, FieldWriter{options, result.tensors, prefix});
      json params = json::array();
      for (const at::Tensor& parameter : group.params()) {
        const Place& place = places.at(parameter.unsafeGetTensorImpl());
        if (!place.is_common) params.push_back(place.name);
        const auto found = all_state.find(compat::state_key<StateMap>(parameter));
        if (found == all_state.end()) continue;
        auto state = static_cast<const ParamState&>(*found->second);
        json scalars = json::object();
        const std::string below = prefix + place.name + "/";
        fields(state, FieldWriter{scalars, result.tensors, below, &place});
        result.description["state"][place.name] = std::move(scalars);
      }
      result.description["groups"].push_back({{"params", params}, {"options", options}});
    }
    return result;
  }

  Result<Commit> stage(const std::string& prefix, const json& description,
                       TensorSource& source) override {
    try {
      return stage_or_throw(prefix, description, source);
    } catch (const Mismatch& difference) {
      return make_error(Errc::kMismatch, "{}: {}", prefix, difference.what());
    } catch (const json::exception& error) {
      return make_error(Errc::kMismatch, "{}: the description is incomplete: {}", prefix,
                        error.what());
    } catch (const ReadFailure& failure) {
      return failure.error;
    }
  }

 private:
  using StateMap = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

  Commit stage_or_throw(const std::string& prefix, const json& description, TensorSource& source) {
    if (description.at("type") != type_) {
      throw Mismatch(
          fmt::format("the checkpoint has an optimizer of type {}, the program one of {}",
                      description.at("type").dump(), type_));
    }
    auto& groups = optimizer_.param_groups();
    if (description.at("groups").size() != groups.size()) {
      throw Mismatch(fmt::format("{} parameter groups in the checkpoint, {} in the program",
                                 description.at("groups").size(), groups.size()));
    }
    struct Change {
      std::vector<Options> options;
      StateMap state;
      std::vector<ValueMove> moves;
    };
    auto change = std::make_shared<Change>();
    const std::map<std::string, at::Tensor> nothing_present;
    const Places places = places_();
    const Place no_place;
    std::set<std::string> known;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const json& saved = description.at("groups")[i];
      json params = json::array();
      for (const at::Tensor& parameter : groups[i].params()) {
        const Place& place = places.at(parameter.unsafeGetTensorImpl());
        if (!place.is_common) params.push_back(place.name);
        known.insert(place.name);
        stage_parameter(prefix + place.name + "/", parameter, place, description.at("state"),
                        source, change->state, change->moves);
      }
      if (saved.at("params") != params) {
        throw Mismatch(fmt::format("group {} has other parameters than in the checkpoint", i));
      }
      auto options = static_cast<const Options&>(groups[i].options());
      fields(options, FieldReader{saved.at("options"), source, prefix, no_place, nothing_present,
                                  change->moves});
      change->options.push_back(std::move(options));
    }
    for (const auto& [name, scalars] : description.at("state").items()) {
      if (!known.contains(name)) throw Mismatch(fmt::format("no parameter \"{}\"", name));
    }
    return [this, change] {
      auto& all = optimizer_.param_groups();
      for (std::size_t i = 0; i < all.size(); ++i) {
        static_cast<Options&>(all[i].options()) = change->options[i];
      }
      move_values(change->moves);
      optimizer_.state() = std::move(change->state);
    };
  }

  void stage_parameter(const std::string& below, const at::Tensor& parameter, const Place& place,
                       const json& states, TensorSource& source, StateMap& into,
                       std::vector<ValueMove>& moves) {
    const auto found = states.find(place.name);
    if (found == states.end()) return;
    std::map<std::string, at::Tensor> present;
    const auto& all_state = optimizer_.state();
    if (const auto own = all_state.find(compat::state_key<StateMap>(parameter));
        own != all_state.end()) {
      auto copy = static_cast<const ParamState&>(*own->second);
      fields(copy, PresentTensors{present});
    }
    auto state = std::make_unique<ParamState>();
    fields(*state, FieldReader{*found, source, below, place, present, moves});
    into[compat::state_key<StateMap>(parameter)] = std::move(state);
  }

  const char* type_;
  torch::optim::Optimizer& optimizer_;
  std::function<Places()> places_;
};

template <typename Options, typename ParamState>
std::unique_ptr<OptimizerState> typed(const char* type, torch::optim::Optimizer& optimizer,
                                      std::function<Places()> places) {
  return std::make_unique<TypedOptimizerState<Options, ParamState>>(type, optimizer,
                                                                    std::move(places));
}

// `places` is called anew each time, because the module's tensors may have been replaced.
std::unique_ptr<OptimizerState> make_typed(const std::string& name, torch::optim::Optimizer& of,
                                           std::function<Places()> places) {
  using namespace torch::optim;
  const std::type_info& type = typeid(of);
  if (type == typeid(SGD)) return typed<SGDOptions, SGDParamState>("SGD", of, places);
  if (type == typeid(Adam)) return typed<AdamOptions, AdamParamState>("Adam", of, places);
  if (type == typeid(AdamW)) return typed<AdamWOptions, AdamWParamState>("AdamW", of, places);
  if (type == typeid(Adagrad))
    return typed<AdagradOptions, AdagradParamState>("Adagrad", of, places);
  if (type == typeid(RMSprop))
    return typed<RMSpropOptions, RMSpropParamState>("RMSprop", of, places);
  throw std::invalid_argument(fmt::format(
      "optimizer \"{}\" is a {}; checkpoints know SGD, Adam, AdamW, Adagrad and RMSprop", name,
      class_name(of)));
}

void check_parameters(const std::string& name, torch::optim::Optimizer& optimizer,
                      const Places& places) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (places.contains(parameter.unsafeGetTensorImpl())) continue;
      throw std::invalid_argument(fmt::format(
          "optimizer \"{}\" has a parameter, {}, that the module given with it does not have", name,
          describe(parameter)));
    }
  }
}

}  // namespace

std::unique_ptr<OptimizerState> make_optimizer_state(const std::string& name,
                                                     torch::optim::Optimizer& optimizer,
                                                     const torch::nn::Module& module) {
  check_parameters(name, optimizer, whole_parameters(module));
  return make_typed(name, optimizer, [&module] { return whole_parameters(module); });
}

std::unique_ptr<OptimizerState> make_optimizer_state(const std::string& name,
                                                     ZeroRedundancyOptimizer& optimizer,
                                                     const torch::nn::Module& module) {
  check_parameters(name, optimizer.optimizer(), divided_parameters(optimizer, module));
  return make_typed(name, optimizer.optimizer(), [&optimizer, &module] {
    optimizer.wait();
    return divided_parameters(optimizer, module);
  });
}

}  // namespace ddp
