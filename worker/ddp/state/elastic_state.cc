#include "worker/ddp/state/elastic_state.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/state/elastic_commit.h"
#include "worker/ddp/state/elastic_sync.h"
#include "worker/ddp/state/registered_state.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/commit_pacer.h"

namespace ddp {

using elastic::CommittedState;
using elastic::Holding;

class ElasticState::Impl {
 public:
  RegisteredState registered;
  runtime::CommitPacer pacer;

  void add_comm_hook(const std::string& name, std::shared_ptr<CommHook> hook) {
    if (!group_)
      throw std::logic_error("a hook belongs to a round: add it between enter() and leave()");
    registered.add_comm_hook(name, *hook);
    hooks_.push_back(std::move(hook));
    if (last_ == nullptr) return;
    check(elastic::put_back_hook(*last_, name, *hooks_.back(), group_->rank(), group_->size()));
  }

  void enter(std::shared_ptr<ProcessGroup> group, ElasticWorker* worker) {
    leave();
    group_ = std::move(group);
    worker_ = worker;
    serial_ = -1;
    pacer.begin();
  }

  void leave() {
    if (group_) {
      for (const auto& item : registered.modules) drop_gradients(item);
    }
    registered.hooks.clear();
    hooks_.clear();
    exchange_.reset();
    group_.reset();
    worker_ = nullptr;
  }

  void commit(std::int64_t step, bool initial = false) {
    if (!exchange_) throw std::logic_error("commit() belongs between sync() and the round's end");
    pacer.commit_begins(seconds());
    CommittedState& kept = capture(step, initial);
    share(kept);
    pacer.commit_ended(seconds(), kept.made_buffers);
    if (worker_ != nullptr && !initial) worker_->committed(step);
  }

  void restore() {
    if (last_ == nullptr) return;
    check(elastic::put_back(*last_, registered, group_->rank(), group_->size()));
  }

  bool sync() {
    if (!group_) throw std::logic_error("sync() belongs between enter() and leave()");
    const auto holdings = elastic::gather_holdings(*group_, holding());
    std::vector<int> nodes;
    for (const Holding& each : holdings) nodes.push_back(each.node);
    exchange_.emplace(*group_, nodes);
    const auto choice = elastic::choose_commit(holdings);
    resumed_ = choice.commit && !choice.commit->initial;
    if (choice.commit) {
      go_back_to(*choice.commit, holdings);
      return resumed_;
    }
    if (choice.trained) {
      throw StateLost(
          "too many ranks were lost at once: no commit is left that has every rank's part, so the "
          "training cannot go on in these processes");
    }
    begin();
    return false;
  }

  std::int64_t step() const { return last_ == nullptr ? -1 : last_->step; }
  bool resumed() const { return resumed_; }

 private:
  // Never throws: leave() may run while an exception of this very module is on its way.
  static void drop_gradients(const RegisteredState::Module& module) {
    try {
      for (const NamedTensor& item : module.state().parameters) {
        at::Tensor parameter = item.tensor;
        parameter.mutable_grad() = at::Tensor();
      }
    } catch (const std::exception&) {
      // A state without tensors has no gradients that could be in the round's memory.
    }
  }

  static void check(const Result<void>& result) {
    if (!result) throw std::runtime_error(result.error().message);
  }

  // The older of the two commits, which the next one overwrites.
  CommittedState& older() {
    if (!commits_[0].valid) return commits_[0];
    if (!commits_[1].valid) return commits_[1];
    return commits_[0].key < commits_[1].key ? commits_[0] : commits_[1];
  }

  CommittedState* find(const elastic::CommitKey& key) {
    for (CommittedState& kept : commits_) {
      if (kept.valid && kept.key == key) return &kept;
    }
    return nullptr;
  }

  // This rank's own of a new commit.
  CommittedState& capture(std::int64_t step, bool initial) {
    CommittedState& kept = older();
    kept.valid = false;
    std::vector<Rank> ranks(static_cast<std::size_t>(group_->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    kept.expect_parts(ranks);
    check(elastic::capture(registered, group_->rank(), kept));
    elastic::share_buffers(*group_, kept);
    kept.key = {group_->round(), ++serial_};
    kept.step = step;
    kept.world_size = group_->size();
    kept.initial = initial;
    kept.valid = true;
    return kept;
  }

  Holding holding() const {
    Holding mine;
    mine.node = worker_ == nullptr
                    ? 0
                    : static_cast<int>(worker_->variable_or("GROUP_RANK", group_->rank()));
    mine.registration = registered.registration();
    for (const CommittedState& kept : commits_) {
      if (!kept.valid) continue;
      Holding::Item item{kept.key, kept.step, kept.world_size, kept.initial, false, {}, {}};
      item.has_hooks = !elastic::hook_names(kept).empty();
      for (const auto& [rank, part] : kept.parts) {
        if (!part.there) continue;
        item.parts.push_back(rank);
        item.part_bytes.push_back(part.bytes.size());
      }
      mine.items.push_back(std::move(item));
    }
    return mine;
  }

  void go_back_to(const Holding::Item& commit, const std::vector<Holding>& holdings) {
    CommittedState* mine = find(commit.key);
    const bool is_new = mine == nullptr;
    if (is_new) {
      mine = &older();
      mine->valid = false;
      mine->parts.clear();
    }
    elastic::distribute(*group_, holdings, commit, *mine);
    if (is_new) {
      mine->key = commit.key;
      mine->step = commit.step;
      mine->world_size = commit.world_size;
      mine->initial = commit.initial;
      mine->valid = true;
    }
    // Drops newer commits that only some ranks had: training does not continue from them.
    for (CommittedState& kept : commits_) {
      if (commit.key < kept.key) kept.valid = false;
    }
    last_ = mine;
    restore();
  }

  // No commit of a training exists: what a rank has is the state that it began with, if any.
  void begin() {
    last_ = nullptr;
    for (CommittedState& kept : commits_) {
      if (!kept.valid) continue;
      check(elastic::put_back(kept, registered, begun_as_, begun_size_));
      kept.valid = false;
    }
    begun_as_ = group_->rank();
    begun_size_ = group_->size();
    CommittedState& kept = capture(0, true);
    elastic::broadcast_replicated(*group_, kept, 0);
    check(elastic::put_back(kept, registered, group_->rank(), group_->size()));
    share(kept);
  }

  // With it the commit is whole.
  void share(CommittedState& kept) {
    pacer.agree(exchange_->run(kept, pacer.proposal()));
    last_ = &kept;
  }

  static double seconds() {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  }

  std::vector<std::shared_ptr<CommHook>> hooks_;  // Of this round.
  std::shared_ptr<ProcessGroup> group_;
  ElasticWorker* worker_ = nullptr;
  std::optional<elastic::PartExchange> exchange_;
  std::int64_t serial_ = -1;  // Of the last commit of this round.
  std::array<CommittedState, 2> commits_;
  CommittedState* last_ = nullptr;  // What restore() goes back to.
  bool resumed_ = false;
  Rank begun_as_ = 0;  // Whose state the initial commit is.
  int begun_size_ = 1;
};

ElasticState::ElasticState() : impl_(std::make_unique<Impl>()) {}
ElasticState::~ElasticState() = default;

void ElasticState::add_module(std::string name, torch::nn::Module& module) {
  impl_->registered.add_module(std::move(name), module);
}
void ElasticState::add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                                 const torch::nn::Module& of) {
  impl_->registered.add_optimizer(std::move(name), optimizer, of);
}
void ElasticState::add_module(std::string name, std::function<ModuleState()> state) {
  impl_->registered.add_module(std::move(name), std::move(state));
}
void ElasticState::add_optimizer(std::string name, std::unique_ptr<OptimizerState> state) {
  impl_->registered.add_optimizer(std::move(name), std::move(state));
}
void ElasticState::add_rng(std::string name) { impl_->registered.add_rng(std::move(name)); }
void ElasticState::add_value(std::string name, std::function<nlohmann::json()> save,
                             std::function<void(const nlohmann::json&)> load, bool per_rank) {
  impl_->registered.add_value(std::move(name), std::move(save), std::move(load), per_rank);
}
void ElasticState::add_sum(std::string name, std::function<nlohmann::json()> save,
                           std::function<void(const nlohmann::json&)> load) {
  impl_->registered.add_sum(std::move(name), std::move(save), std::move(load));
}
void ElasticState::add_comm_hook(const std::string& name, std::shared_ptr<CommHook> hook) {
  impl_->add_comm_hook(name, std::move(hook));
}

void ElasticState::set_commit_pace(const CommitPace& pace) {
  impl_->pacer = runtime::CommitPacer(pace);
}
void ElasticState::commit(std::int64_t step) { impl_->commit(step); }
bool ElasticState::is_commit_due() { return impl_->pacer.step(); }
bool ElasticState::commit_if_due(std::int64_t step) {
  if (!is_commit_due()) return false;
  commit(step);
  return true;
}
std::int64_t ElasticState::step() const { return impl_->step(); }
bool ElasticState::resumed() const { return impl_->resumed(); }
void ElasticState::restore() { impl_->restore(); }
bool ElasticState::sync() { return impl_->sync(); }
void ElasticState::enter(std::shared_ptr<ProcessGroup> group, ElasticWorker* worker) {
  impl_->enter(std::move(group), worker);
}
void ElasticState::leave() { impl_->leave(); }

}  // namespace ddp
