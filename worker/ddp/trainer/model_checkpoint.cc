#include "worker/ddp/trainer/model_checkpoint.h"

#include <stdexcept>

#include <fmt/format.h>

#include "worker/ddp/tensors/value_of.h"
#include "worker/ddp/trainer/trainer.h"

namespace ddp {

ModelCheckpoint::ModelCheckpoint(const ModelCheckpointOptions& options)
    : MonitorCallback("ModelCheckpoint", options.monitor, options.mode, 0), options_(options) {
  if (options.save_top_k < 1) {
    throw std::invalid_argument(
        fmt::format("ModelCheckpoint: save_top_k {}: expected at least 1", options.save_top_k));
  }
}

std::string ModelCheckpoint::directory_in(const std::string& default_root_dir) const {
  if (!options_.dirpath.empty()) return options_.dirpath;
  if (!default_root_dir.empty()) return default_root_dir + "/best-" + options_.monitor;
  throw std::invalid_argument(
      "ModelCheckpoint has nowhere to save: expected its dirpath or the Trainer's "
      "default_root_dir");
}

void ModelCheckpoint::on_fit_start(Trainer& trainer, TrainerModule& module) {
  checkpointer_ = std::make_unique<Checkpointer>(
      CheckpointOptions{.directory = directory_in(trainer.options().default_root_dir),
                        .keep = options_.save_top_k,
                        // The Trainer's own checkpoint, which names the best one, may be the next
                        // thing on the disk, and the last one of this process.
                        .asynchronous = false},
      trainer.group());
  checkpointer_->add_module("model", module);
  value_of(checkpointer_->prepare());
}

void ModelCheckpoint::look_at(Trainer& trainer, double value) {
  if (!take(value)) return;
  best_step_ = trainer.place().step;
  (void)value_of(checkpointer_->save(best_step_, trainer.place().epoch));
}

void ModelCheckpoint::on_fit_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {
  checkpointer_.reset();
}

nlohmann::json ModelCheckpoint::state() const {
  nlohmann::json saved = MonitorCallback::state();
  saved["best_step"] = best_step_;
  return saved;
}

void ModelCheckpoint::load_state(const nlohmann::json& saved) {
  MonitorCallback::load_state(saved);
  best_step_ = saved.at("best_step").get<std::int64_t>();
}

}  // namespace ddp
