#include "worker/ddp/state/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/state/checkpointer_impl.h"
#include "worker/ddp/tensors/text_exchange.h"

namespace ddp {
std::string unique_word() {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", ::getpid(), random(), random());
}

Checkpointer::Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
                           std::shared_ptr<CheckpointWriter> writer)
    : Checkpointer(std::move(options), std::move(group), checkpoint::posix_file_system(),
                   std::move(writer)) {}

Checkpointer::Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
                           checkpoint::FileSystem& files,
                           std::shared_ptr<CheckpointWriter> writer) {
  if (options.directory.empty()) {
    throw std::invalid_argument("the checkpoint directory has no name");
  }
  if (options.keep < 0) {
    throw std::invalid_argument(
        fmt::format("{} checkpoints cannot be kept; 0 keeps all of them", options.keep));
  }
  if (options.keep_every < 0) {
    throw std::invalid_argument(
        fmt::format("checkpoints of every {} steps cannot be kept; 0 keeps the newest ones only",
                    options.keep_every));
  }
  if (!writer) writer = std::make_shared<CheckpointWriter>();
  impl_ = std::make_unique<Impl>(std::move(options), std::move(group), files, std::move(writer));
}

Checkpointer::~Checkpointer() = default;

void Checkpointer::add_module(std::string name, torch::nn::Module& module) {
  impl_->add_module(std::move(name), module);
}

void Checkpointer::add_module(std::string name, std::function<ModuleState()> state) {
  impl_->add_module(std::move(name), std::move(state));
}

void Checkpointer::add_optimizer(std::string name, std::unique_ptr<OptimizerState> state) {
  impl_->add_optimizer(std::move(name), std::move(state));
}

void Checkpointer::add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                                 const torch::nn::Module& of) {
  impl_->add_optimizer(std::move(name), optimizer, of);
}

void Checkpointer::add_optimizer(std::string name, ZeroRedundancyOptimizer& optimizer,
                                 const torch::nn::Module& of) {
  if (!impl_->options.ranks_are_equal) {
    throw std::invalid_argument(
        fmt::format("optimizer \"{}\" is divided among the ranks, which keeps them equal; leave "
                    "ranks_are_equal on",
                    name));
  }
  impl_->add_optimizer(std::move(name), optimizer, of);
}

void Checkpointer::add_rng(std::string name) { impl_->add_rng(std::move(name)); }

void Checkpointer::add_value(std::string name, std::function<nlohmann::json()> save,
                             std::function<void(const nlohmann::json&)> load, bool per_rank) {
  impl_->add_value(std::move(name), std::move(save), std::move(load), per_rank);
}

void Checkpointer::add_comm_hook(std::string name, CommHook& hook) {
  impl_->add_comm_hook(std::move(name), hook);
}

Result<void> Checkpointer::prepare() { return impl_->prepare(); }

Result<SaveReport> Checkpointer::save(std::int64_t step, std::int64_t epoch) {
  return impl_->save(step, epoch);
}

Result<SaveReport> Checkpointer::wait() { return impl_->wait(); }

Result<LoadReport> Checkpointer::load_latest(const LoadOptions& options) {
  if (const auto last = impl_->wait(); !last && impl_->group->rank() == 0) {
    impl_->warnings.push_back(last.error().message);
  }
  return impl_->load_latest(options);
}

void Checkpointer::tell_times(CheckpointTimes times) { impl_->times = std::move(times); }

void Checkpointer::tell_newest(std::int64_t step) const { impl_->tell_newest(step); }

const std::vector<std::string>& Checkpointer::warnings() const { return impl_->warnings; }

Checkpointer::Impl::Impl(CheckpointOptions chosen, std::shared_ptr<ProcessGroup> process_group,
                         checkpoint::FileSystem& file_system,
                         std::shared_ptr<CheckpointWriter> process_writer)
    : options(std::move(chosen)),
      group(std::move(process_group)),
      files(file_system),
      directory(file_system, options.directory),
      writer(std::move(process_writer)) {
  writer->impl().begin_round();
}

}  // namespace ddp
