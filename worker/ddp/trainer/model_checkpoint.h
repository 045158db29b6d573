#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/trainer/monitor_callback.h"

namespace ddp {

struct ModelCheckpointOptions {
  std::string monitor = {};
  std::string mode = "min";  // Or "max".
  // How many to keep: the best one, and those that were the best before it.
  int save_top_k = 1;
  std::string dirpath = {};  // Empty: best-MONITOR in default_root_dir.
};

// Saves the model whenever a metric reaches a new best value; training waits until it is on the
// disk. The checkpoints from which fit()
// resumes are the Trainer's own and need no callback. Trainer::test(module, loader, "best") uses
// the best one; load_tensors() can read it.
class ModelCheckpoint final : public trainer::MonitorCallback {
 public:
  // std::invalid_argument for options that are wrong.
  explicit ModelCheckpoint(const ModelCheckpointOptions& options);
  std::string name() const override { return "ModelCheckpoint"; }
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;
  void on_fit_end(Trainer& trainer, TrainerModule& module) override;
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& saved) override;

  std::optional<double> best_model_score() const { return best(); }
  std::int64_t best_step() const { return best_step_; }  // -1: none yet.
  // Where it saves in a training with this default_root_dir. std::invalid_argument if there is
  // neither that nor a dirpath.
  std::string directory_in(const std::string& default_root_dir) const;

 private:
  void look_at(Trainer& trainer, double value) override;

  ModelCheckpointOptions options_;
  std::int64_t best_step_ = -1;
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace ddp
