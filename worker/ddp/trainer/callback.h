#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace ddp {

class Trainer;
class TrainerModule;

// What is called while Trainer::fit runs, on every rank alike, so that all ranks decide alike: look
// at metrics(), which are the same on all, and not at what a rank has computed alone.
//
// A callback's state is in every checkpoint: after a restart it goes on where it was. What it
// throws ends the training.
class Callback {
 public:
  virtual ~Callback() = default;
  // In checkpoints; of several with the same name the order counts.
  virtual std::string name() const = 0;

  // After resuming.
  virtual void on_fit_start(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  virtual void on_train_epoch_start(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // After each update.
  virtual void on_train_batch_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // metrics() has the validation's.
  virtual void on_validation_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // metrics() has the epoch's, and those of a validation at its end.
  virtual void on_train_epoch_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  virtual void on_fit_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}

  virtual nlohmann::json state() const { return nullptr; }
  virtual void load_state(const nlohmann::json& /*saved*/) {}
};

}  // namespace ddp
