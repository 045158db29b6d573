#include "worker/ddp/hooks/hook_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/hooks/batched_power_sgd_hook.h"
#include "worker/ddp/hooks/compress_wrapper.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/hierarchical_model_averager.h"
#include "worker/ddp/hooks/post_local_sgd_hook.h"
#include "worker/ddp/hooks/power_sgd_hook.h"
#include "worker/ddp/hooks/quantization_hooks.h"
#include "worker/ddp/hooks/subgroups.h"

namespace ddp {
namespace {

using GroupPtr = std::shared_ptr<ProcessGroup>;
using HookPtr = std::shared_ptr<CommHook>;
using Hierarchy = std::vector<std::pair<std::int64_t, int>>;

struct PostLocalOptions {
  std::int64_t start_iter = 100;
  bool gradient_allreduce = true;
  int subgroup_size = 0;
  std::int64_t period = 4;
  Hierarchy hierarchy;
};

// All that a text can set.
struct Settings {
  PowerSGDOptions power;
  std::int64_t quantization_bucket_size = 512;
  PostLocalOptions post_local;
};

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

template <typename T>
T parsed(std::string_view text, const char* wanted, T least,
         T most = std::numeric_limits<T>::max()) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least) ||
      !(value <= most)) {
    refuse(fmt::format("is not {}", wanted));
  }
  return value;
}

template <typename T>
T count(std::string_view text, T least) {
  return parsed<T>(text, least == 0 ? "a whole number" : "a whole number of at least 1", least);
}

double real(std::string_view text) {
  return parsed<double>(text, "a number of at least 0", 0, std::numeric_limits<double>::max());
}

bool yes_or_no(std::string_view text) {
  for (const char* yes : {"true", "on", "1", "yes"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "off", "0", "no"}) {
    if (text == no) return false;
  }
  refuse("is neither true nor false");
}

// "4x2/16x4"
Hierarchy hierarchy(std::string_view text) {
  Hierarchy pairs;
  while (true) {
    const std::string_view pair = text.substr(0, text.find('/'));
    const std::size_t cross = pair.find('x');
    if (cross == std::string_view::npos) {
      refuse("is not a list of PERIODxSIZE separated by /");
    }
    pairs.emplace_back(count<std::int64_t>(pair.substr(0, cross), 1),
                       count<int>(pair.substr(cross + 1), 1));
    if (pair.size() == text.size()) return pairs;
    text.remove_prefix(pair.size() + 1);
  }
}

struct Key {
  const char* name;
  const char* torch_name;  // PyTorch's, if it is another one.
  const char* standard;    // The default, in words.
  void (*set)(Settings& settings, std::string_view value);
};

struct Hook {
  const char* name;
  std::vector<Key> keys;
  HookPtr (*make)(const Hook& hook, const Settings& settings, const GroupPtr& group);
};

template <Future (*function)(ProcessGroup&, GradBucket&)>
HookPtr plain_hook(const Hook& hook, const Settings& /*settings*/, const GroupPtr& group) {
  return make_comm_hook(group, function, hook.name);
}

template <Future (*function)(PowerSGDState&, GradBucket&)>
HookPtr power_hook(const Hook& hook, const Settings& settings, const GroupPtr& group) {
  return make_comm_hook(std::make_shared<PowerSGDState>(group, settings.power), function,
                        hook.name);
}

HookPtr make_per_channel(const Hook& hook, const Settings& settings, const GroupPtr& group) {
  const auto run = [size = settings.quantization_bucket_size](ProcessGroup& on,
                                                              GradBucket& bucket) {
    return quantization_perchannel_hook(on, bucket, size);
  };
  return make_comm_hook(group, run, hook.name);
}

std::vector<Key> power_keys() {
  return {
      {"rank", "matrix_approximation_rank", "1",
       [](Settings& s, std::string_view v) {
         s.power.matrix_approximation_rank = count<int>(v, 1);
       }},
      {"start_iter", "start_powerSGD_iter", "1000",
       [](Settings& s, std::string_view v) {
         s.power.start_powerSGD_iter = count<std::int64_t>(v, 0);
       }},
      {"min_rate", "min_compression_rate", "2",
       [](Settings& s, std::string_view v) { s.power.min_compression_rate = real(v); }},
      {"error_feedback", "use_error_feedback", "true",
       [](Settings& s, std::string_view v) { s.power.use_error_feedback = yes_or_no(v); }},
      {"warm_start", nullptr, "true",
       [](Settings& s, std::string_view v) { s.power.warm_start = yes_or_no(v); }},
      {"epsilon", "orthogonalization_epsilon", "0",
       [](Settings& s, std::string_view v) { s.power.orthogonalization_epsilon = real(v); }},
      {"seed", "random_seed", "0",
       [](Settings& s, std::string_view v) { s.power.random_seed = count<std::uint64_t>(v, 0); }},
      {"stats_frequency", "compression_stats_logging_frequency", "10000",
       [](Settings& s, std::string_view v) {
         s.power.compression_stats_logging_frequency = count<std::int64_t>(v, 1);
       }},
      {"batch_same_shape", "batch_tensors_with_same_shape", "false",
       [](Settings& s, std::string_view v) {
         s.power.batch_tensors_with_same_shape = yes_or_no(v);
       }},
  };
}

const std::vector<Key>& post_local_keys() {
  static const std::vector<Key> keys = {
      {"start_iter", "start_localSGD_iter", "100",
       [](Settings& s, std::string_view v) {
         s.post_local.start_iter = count<std::int64_t>(v, 0);
       }},
      {"gradient_allreduce", "post_local_gradient_allreduce", "true",
       [](Settings& s, std::string_view v) { s.post_local.gradient_allreduce = yes_or_no(v); }},
      {"subgroup_size", nullptr, "a node's ranks",
       [](Settings& s, std::string_view v) { s.post_local.subgroup_size = count<int>(v, 1); }},
      {"period", nullptr, "4",
       [](Settings& s, std::string_view v) { s.post_local.period = count<std::int64_t>(v, 1); }},
      {"hierarchy", "period_group_size_dict", "none; PERIODxSIZE/PERIODxSIZE/... instead of period",
       [](Settings& s, std::string_view v) { s.post_local.hierarchy = hierarchy(v); }},
  };
  return keys;
}

HookPtr make_post_local(const Hook& hook, const Settings& settings, const GroupPtr& group) {
  const PostLocalOptions& options = settings.post_local;
  GroupPtr subgroup;
  if (options.subgroup_size != 0) subgroup = new_subgroups(*group, options.subgroup_size);
  return make_comm_hook(std::make_shared<PostLocalSGDState>(group, subgroup, options.start_iter,
                                                            options.gradient_allreduce),
                        post_localSGD_hook, hook.name);
}

const std::vector<Hook>& hooks() {
  static const std::vector<Hook> all = {
      {"allreduce", {}, plain_hook<allreduce_hook>},
      {"fp16", {}, plain_hook<fp16_compress_hook>},
      {"bf16", {}, plain_hook<bf16_compress_hook>},
      {"powersgd", power_keys(), power_hook<powerSGD_hook>},
      {"batched_powersgd", power_keys(), power_hook<batched_powerSGD_hook>},
      {"quantize_per_tensor", {}, plain_hook<quantization_pertensor_hook>},
      {"quantize_per_channel",
       {{"bucket_size", nullptr, "512",
         [](Settings& s, std::string_view v) {
           s.quantization_bucket_size = count<std::int64_t>(v, 1);
         }}},
       make_per_channel},
      {"post_localsgd", post_local_keys(), make_post_local},
      {"noop", {}, plain_hook<noop_hook>},
  };
  return all;
}

// A text in its parts.
struct Choice {
  std::vector<std::string> wrappers;  // "fp16" or "bf16", the outermost first.
  const Hook* hook = nullptr;
  Settings settings;
};

std::vector<std::string> names_of_hooks() {
  std::vector<std::string> names;
  for (const Hook& hook : hooks()) names.emplace_back(hook.name);
  return names;
}

const Hook& hook_named(std::string_view name) {
  for (const Hook& hook : hooks()) {
    if (name == hook.name) return hook;
  }
  refuse(
      fmt::format("there is no communication hook \"{}\"; there are {}, and each may have fp16+ "
                  "or bf16+ before it",
                  name, fmt::join(names_of_hooks(), ", ")));
}

void set(Choice& choice, std::string_view item, std::set<std::string>& seen) {
  const Hook& hook = *choice.hook;
  const std::size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  const auto key = std::find_if(hook.keys.begin(), hook.keys.end(), [name](const Key& candidate) {
    return name == candidate.name ||
           (candidate.torch_name != nullptr && name == candidate.torch_name);
  });
  std::vector<std::string> keys;
  for (const Key& other : hook.keys) keys.emplace_back(other.name);
  const std::string list =
      keys.empty() ? "it takes none" : fmt::format("it has {}", fmt::join(keys, ", "));
  if (key == hook.keys.end()) {
    refuse(fmt::format("the communication hook {} has no key \"{}\"; {}", hook.name, name, list));
  }
  if (equals == std::string_view::npos) {
    refuse(fmt::format("the communication hook {} needs a value: {}=...", hook.name, name));
  }
  if (!seen.insert(key->name).second) {
    refuse(fmt::format("the communication hook {} is given {} twice", hook.name, key->name));
  }
  try {
    key->set(choice.settings, item.substr(equals + 1));
  } catch (const std::invalid_argument& error) {
    refuse(fmt::format("the communication hook {} is given {}=\"{}\", which {} (default: {}); {}",
                       hook.name, name, item.substr(equals + 1), error.what(), key->standard,
                       list));
  }
}

Choice choice_of(std::string_view text) {
  Choice choice;
  const std::size_t colon = text.find(':');
  std::string_view name = text.substr(0, colon);
  for (std::size_t plus = name.find('+'); plus != std::string_view::npos; plus = name.find('+')) {
    const std::string_view wrapper = name.substr(0, plus);
    if (wrapper != "fp16" && wrapper != "bf16") {
      refuse(fmt::format("\"{}\" cannot come before a communication hook; fp16+ and bf16+ can",
                         name.substr(0, plus + 1)));
    }
    choice.wrappers.emplace_back(wrapper);
    name.remove_prefix(plus + 1);
  }
  choice.hook = &hook_named(name);
  std::set<std::string> seen;
  std::string_view items = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && items.empty()) {
    refuse(fmt::format("nothing follows the colon of \"{}\"", text));
  }
  while (!items.empty()) {
    const std::string_view item = items.substr(0, items.find(','));
    set(choice, item, seen);
    items.remove_prefix(std::min(items.size(), item.size() + 1));
  }
  if (seen.contains("period") && seen.contains("hierarchy")) {
    refuse("the communication hook post_localsgd takes period or hierarchy, not both");
  }
  if (std::string_view(choice.hook->name).ends_with("powersgd")) check(choice.settings.power);
  return choice;
}

}  // namespace

std::string comm_hook_help() {
  std::string help;
  for (const Hook& hook : hooks()) {
    help += hook.name;
    const char* separator = ": ";
    for (const Key& key : hook.keys) {
      help += fmt::format("{}{} ({})", separator, key.name, key.standard);
      separator = ", ";
    }
    help += '\n';
  }
  return help + "fp16+NAME, bf16+NAME: any of them on half-precision copies\n";
}

void check_comm_hook_text(std::string_view text) { (void)choice_of(text); }

std::shared_ptr<CommHook> make_comm_hook_from_text(std::string_view text,
                                                   std::shared_ptr<ProcessGroup> group) {
  const Choice choice = choice_of(text);
  HookPtr hook = choice.hook->make(*choice.hook, choice.settings, group);
  for (std::size_t left = choice.wrappers.size(); left > 0; --left) {
    hook = choice.wrappers[left - 1] == "fp16" ? fp16_compress_wrapper(std::move(hook))
                                               : bf16_compress_wrapper(std::move(hook));
  }
  return hook;
}

std::shared_ptr<ModelAverager> make_model_averager_from_text(std::string_view text,
                                                             std::shared_ptr<ProcessGroup> group) {
  const Choice choice = choice_of(text);
  if (choice.hook->make != make_post_local) return nullptr;
  const PostLocalOptions& options = choice.settings.post_local;
  if (!options.hierarchy.empty()) {
    return std::make_shared<HierarchicalModelAverager>(options.hierarchy, options.start_iter,
                                                       std::move(group));
  }
  return std::make_shared<PeriodicModelAverager>(options.period, options.start_iter,
                                                 std::move(group));
}

}  // namespace ddp
