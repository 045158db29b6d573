#include "worker/ddp/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/checkpointer_impl.h"
#include "worker/ddp/exchange.h"

namespace ddp {
std::string unique_word() {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}", ::getpid(), random(), random());
}

Checkpointer::Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group)
    : Checkpointer(std::move(options), std::move(group), checkpoint::posix_file_system()) {}

Checkpointer::Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
                           checkpoint::FileSystem& files) {
  if (options.directory.empty()) {
    throw std::invalid_argument("the checkpoint directory has no name");
  }
  if (options.keep < 0) {
    throw std::invalid_argument(
        fmt::format("{} checkpoints cannot be kept; 0 keeps all of them", options.keep));
  }
  impl_ = std::make_unique<Impl>(std::move(options), std::move(group), files);
}

Checkpointer::~Checkpointer() = default;

void Checkpointer::add_module(std::string name, torch::nn::Module& module) {
  impl_->add_module(std::move(name), module);
}

void Checkpointer::add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                                 const torch::nn::Module& of) {
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

Result<std::string> Checkpointer::save(std::int64_t step, std::int64_t epoch) {
  return impl_->save(step, epoch);
}

Result<LoadReport> Checkpointer::load_latest() { return impl_->load_latest(); }

const std::vector<std::string>& Checkpointer::warnings() const { return impl_->warnings; }

Checkpointer::Impl::Impl(CheckpointOptions chosen, std::shared_ptr<ProcessGroup> process_group,
                         checkpoint::FileSystem& file_system)
    : options(std::move(chosen)),
      group(std::move(process_group)),
      files(file_system),
      directory(file_system, options.directory) {}

Result<void> Checkpointer::Impl::prepare() {
  const std::string tag = "checkpoint folder";
  warnings.clear();
  Result<void> made;
  if (group->rank() == 0) made = directory.prepare(&warnings);
  if (auto agreed = agree(*group, made, tag); !agreed) return agreed;

  // Everybody writes into a folder that rank 0 makes: this fails where the ranks do not share the
  // directory.
  std::string probe;
  Result<void> begun;
  if (group->rank() == 0) {
    auto path = directory.begin(0, "probe-" + unique_word());
    if (path) {
      probe = *path;
    } else {
      begun = path.error();
    }
  }
  if (auto agreed = agree(*group, begun, tag); !agreed) return agreed;
  probe = broadcast_text(*group, probe, 0, tag);
  Result<void> written = checkpoint::write_durably(
      files, checkpoint::join_path(probe, fmt::format("rank-{:05}", group->rank())), "probe\n");
  if (!written) {
    written = make_error(Errc::kIo, "the checkpoint folder {} must be writable by all ranks: {}",
                         options.directory, written.error().message);
  }
  Result<void> agreed;
  try {
    agreed = agree(*group, written, tag);
  } catch (...) {
    if (group->rank() == 0) (void)directory.discard(probe);
    throw;
  }
  if (group->rank() == 0) {
    if (auto removed = directory.discard(probe); !removed) {
      warnings.push_back(removed.error().message);
    }
  }
  return agreed;
}

}  // namespace ddp
