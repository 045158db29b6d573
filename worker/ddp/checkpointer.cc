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
namespace {

template <typename Items>
void check_name(const char* kind, const std::string& name, const Items& items) {
  if (name.empty() || name.find('/') != std::string::npos) {
    throw std::invalid_argument(
        fmt::format("\"{}\" cannot name a {}: it must not be empty nor contain '/'", name, kind));
  }
  for (const auto& item : items) {
    if (item.name == name) {
      throw std::invalid_argument(fmt::format("the {} \"{}\" is registered already", kind, name));
    }
  }
}

}  // namespace

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
  check_name("module", name, impl_->modules);
  impl_->modules.push_back({std::move(name), &module});
}

void Checkpointer::add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                                 const torch::nn::Module& of) {
  check_name("optimizer", name, impl_->optimizers);
  auto state = make_optimizer_state(name, optimizer, of);
  impl_->optimizers.push_back({std::move(name), std::move(state)});
}

void Checkpointer::add_rng(std::string name) {
  if (!impl_->rngs.empty()) {
    throw std::invalid_argument("the default generator is registered already");
  }
  check_name("generator", name, std::vector<Impl::RegisteredModule>());
  impl_->rngs.push_back(std::move(name));
}

void Checkpointer::add_value(std::string name, std::function<nlohmann::json()> save,
                             std::function<void(const nlohmann::json&)> load, bool per_rank) {
  check_name("value", name, impl_->values);
  impl_->values.push_back({std::move(name), std::move(save), std::move(load), per_rank});
}

void Checkpointer::add_comm_hook(std::string name, CommHook& hook) {
  check_name("communication hook", name, impl_->hooks);
  impl_->hooks.push_back({std::move(name), &hook});
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

std::string Checkpointer::Impl::registration() const {
  std::string text;
  for (const auto& module : modules) text += fmt::format("module {}\n", module.name);
  for (const auto& optimizer : optimizers) text += fmt::format("optimizer {}\n", optimizer.name);
  for (const auto& name : rngs) text += fmt::format("generator {}\n", name);
  for (const auto& item : hooks) {
    text += fmt::format("communication hook {} ({})\n", item.name, item.hook->name());
  }
  for (const auto& value : values) {
    text += fmt::format("value {}{}\n", value.name, value.per_rank ? " per rank" : "");
  }
  return text;
}

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
