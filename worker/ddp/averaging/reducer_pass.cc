// The stages of one backward in the reducer: its beginning, its gradients, its end.
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include "common/base/recycled.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/tensors/compat.h"

namespace ddp {
namespace {

constexpr std::size_t kNamesInMessage = 10;

// The first names, and "..." if there are more.
std::string list(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesInMessage);
  return fmt::format("{}{}",
                     fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "),
                     names.size() > shown ? ", ..." : "");
}

}  // namespace

struct Reducer::Pass {
  Pass(std::shared_ptr<ProcessGroup> group_in, std::vector<DeviceGroup> device_groups_in,
       const void* graph_in, bool from_outputs_in)
      : group(std::move(group_in)),
        device_groups(std::move(device_groups_in)),
        graph(graph_in),
        from_outputs(from_outputs_in) {}
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  ~Pass() {
    if (is_finished || group->size() == 1) return;
    try {
      abort_all(*group, device_groups,
                "backward ended by an exception before its gradients were reduced");
    } catch (const std::exception&) {
      // Nothing is left to tell the peers with; their deadlines end their wait.
    }
  }

  std::shared_ptr<ProcessGroup> group;
  std::vector<DeviceGroup> device_groups;
  const void* graph;
  bool from_outputs;  // Began at the module's outputs, so every nested backward lies within it.
  std::thread::id thread = std::this_thread::get_id();
  bool is_started = false;  // A gradient has come.
  bool is_finished = false;
};

// Autograd calls this at the end of the backward, and destroys it with its record of that backward.
struct Reducer::EndOfPass : Recycled<EndOfPass> {
  EndOfPass(Reducer& reducer_in, std::shared_ptr<Pass> pass_in)
      : reducer(&reducer_in), pass(std::move(pass_in)) {}
  void operator()() const { reducer->finish_pass(*pass); }

  Reducer* reducer;
  std::shared_ptr<Pass> pass;
};

void Reducer::on_outputs() {
  const std::lock_guard lock(mutex_);
  if (require_sync_) enter_pass(/*from_outputs=*/true);
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (!require_sync_) {
    parameters_[index].used = true;
    if (options_.after_backward) enter_local_pass();
    return;
  }
  Pass& pass = enter_pass(/*from_outputs=*/false);
  try {
    if (!pass.is_started) start(pass);
    arrive(index);
  } catch (const std::exception& error) {
    buckets_.abort(error.what());
    throw;
  }
}

Reducer::Pass& Reducer::enter_pass(bool from_outputs) {
  const void* graph = compat::current_backward();
  std::shared_ptr<Pass> pass = pass_.lock();
  if (!pass || pass->is_finished) {
    begin_pass(graph, from_outputs);
    pass = pass_.lock();
  } else if (pass->graph != graph && !is_nested_in(*pass)) {
    throw std::logic_error(
        "a backward through a DistributedDataParallel module began before another one had ended; "
        "run them one after the other, and only the last one outside of no_sync(); one that is "
        "nested in another (checkpointing) needs static_graph");
  }
  return *pass;  // Autograd's record of the running backward owns it.
}

// Whether a backward that runs on this thread is nested in this pass. On the CPU, a nested backward
// runs on the thread that began it. On a device it runs on the device's thread, which does not say
// whose it is.
bool Reducer::is_nested_in(const Pass& pass) const {
  return options_.static_graph && pass.from_outputs &&
         (!is_all_on_cpu_ || pass.thread == std::this_thread::get_id());
}

// In a larger group, a backward that was abandoned has aborted the group.
bool Reducer::drop_abandoned_pass() {
  if (!in_pass_ || !pass_.expired()) return false;
  in_pass_ = false;
  buckets_.drain();
  for (Parameter& parameter : parameters_) parameter.used = false;
  return true;
}

bool Reducer::drop_abandoned_passes() {
  const std::lock_guard lock(mutex_);
  const bool was_local = in_local_pass_ && local_pass_.expired();
  if (was_local) in_local_pass_ = false;
  return drop_abandoned_pass() || was_local;
}

void Reducer::begin_pass(const void* graph, bool from_outputs) {
  drop_abandoned_pass();
  if (const auto shared = reduced_.find_shared()) {
    const std::string text = fmt::format(
        "parameter {} is reduced by {} DistributedDataParallel modules; destroy one of them first",
        name_of(shared->index), shared->reducers);
    buckets_.abort(text);
    throw std::logic_error(text);
  }
  pass_.reset();  // The memory of the last one is this one's.
  auto pass = std::allocate_shared<Pass>(RecyclingAllocator<Pass>(), group_, options_.device_groups,
                                         graph, from_outputs);
  // Queued at the first gradient, so that it runs however few gradients come.
  torch::autograd::Engine::get_default_engine().queue_callback(EndOfPass(*this, pass));
  pass_ = pass;
  in_pass_ = true;
  timer_.begin_backward(buckets_.pieces().size());
}

// A backward without synchronisation, whose end has to be noticed.
void Reducer::enter_local_pass() {
  if (const auto present = local_pass_.lock(); present && !present->is_finished) return;
  const auto pass = std::make_shared<LocalPass>();
  torch::autograd::Engine::get_default_engine().queue_callback([this, pass] {
    options_.after_backward();
    slots().match_types();
    const std::lock_guard lock(mutex_);
    pass->is_finished = true;
    in_local_pass_ = false;
  });
  local_pass_ = pass;
  in_local_pass_ = true;
}

void Reducer::start(Pass& pass) {
  pass.is_started = true;
  progress_.begin();
  for (Parameter& parameter : parameters_) {
    parameter.count = 0;
    parameter.is_deferred = false;
  }
  if (synced_passes_ == 0) arrivals_.clear();
  if (joining()) {
    join_->begin(JoinCalls::Call::kBackward, join_model_);
    if (join_->options().throw_on_early_termination) {
      join_->finish();
      if (join_->first_ended() >= 0) {
        throw std::runtime_error(fmt::format("rank {} has no input left", join_->first_ended()));
      }
    }
  }
  if (!options_.static_graph || !counts_known_ || !buckets_.has_memory()) return;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index].expected != 0) continue;
    if (!is_sparse(parameters_[index].bucket)) slots().stage_and_keep(index);
    progress_.mark_ready(index);
  }
}

void Reducer::arrive(std::size_t index) {
  Parameter& parameter = parameters_[index];
  parameter.used = true;
  ++parameter.count;
  timer_.gradient(parameter.piece);
  if (synced_passes_ == 0) arrivals_.push_back(index);
  if (options_.static_graph) {
    if (!counts_known_ || parameter.count < parameter.expected) return;
    if (parameter.count > parameter.expected) {
      throw std::runtime_error(fmt::format(
          "static_graph: parameter {} got gradient number {} in a backward, but only {} in the "
          "first one; the graph has changed",
          name_of(index), parameter.count, parameter.expected));
    }
  }
  if (!progress_.mark_ready(index)) {
    throw std::logic_error(fmt::format(
        "parameter {} got its gradient twice in one backward; is it used outside of forward, or "
        "does a part of the module run again in backward? If it always does, set static_graph",
        name_of(index)));
  }
  if (!buckets_.has_memory()) return;
  make_ready(index);
  launch_ready_pieces();
}

void Reducer::finish_pass(Pass& pass) {
  timer_.end_compute();
  if (options_.after_backward) options_.after_backward();
  if (pass.is_started) {
    check_nothing_missing();
    if (buckets_.has_memory()) {
      try {
        stage_rest();
        launch_ready_pieces();
        complete(/*shadow=*/false);
      } catch (const std::exception& error) {
        buckets_.drain();
        buckets_.abort(error.what());
        throw;
      }
    }
    if (options_.after_backward) slots().match_types();
    timer_.end_backward(tags_);
    end_synced_pass();
  }
  // Else no parameter was to get a gradient: torch::autograd::grad.
  const std::lock_guard lock(mutex_);
  in_pass_ = false;
  pass.is_finished = true;
}

void Reducer::end_synced_pass() {
  if (options_.static_graph && !counts_known_) {
    for (Parameter& parameter : parameters_) parameter.expected = parameter.count;
    counts_known_ = true;
  }
  bool all_used = true;
  for (Parameter& parameter : parameters_) {
    if (synced_passes_ > 0 && parameter.used != parameter.used_in_last) uses_same_ = false;
    parameter.used_in_last = std::exchange(parameter.used, false);
    all_used = all_used && parameter.used_in_last;
  }
  if (all_used && options_.find_unused_parameters && synced_passes_ == 0) {
    TORCH_WARN_ONCE(
        "find_unused_parameters is set, but the first backward used every parameter; if that is "
        "always so, the option only costs an exchange in every backward");
  }
  ++synced_passes_;
  if (!has_rebuilt_) rebuild();
}

void Reducer::check_nothing_missing() {
  if (options_.static_graph) {
    check_static_graph();
    return;
  }
  if (options_.find_unused_parameters) return;
  std::vector<std::string> missing;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!parameters_[index].used) missing.push_back(name_of(index));
  }
  if (missing.empty()) return;
  const std::string text = fmt::format(
      "{} of {} parameters got no gradient in this backward: {}; they have no part in the loss: "
      "freeze them before wrapping the module, or set find_unused_parameters",
      missing.size(), parameters_.size(), list(missing));
  buckets_.abort(text);
  throw std::runtime_error(text);
}

void Reducer::check_static_graph() {
  if (!counts_known_) return;
  std::vector<std::string> changed;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Parameter& parameter = parameters_[index];
    if (parameter.count == parameter.expected) continue;
    changed.push_back(
        fmt::format("{} ({} instead of {})", name_of(index), parameter.count, parameter.expected));
  }
  if (changed.empty()) return;
  const std::string text = fmt::format(
      "static_graph: {} of {} parameters got a different number of gradients than in the first "
      "backward: {}; set find_unused_parameters instead of static_graph",
      changed.size(), parameters_.size(), list(changed));
  buckets_.abort(text);
  throw std::runtime_error(text);
}

}  // namespace ddp
