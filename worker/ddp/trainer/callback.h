#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace ddp {

class Trainer;
class TrainerModule;

// Trainer::fit calls it, in the same way on every rank. All ranks must decide alike, so use
// metrics(), which are the same on all ranks, and not values that a rank has computed alone.
//
// A callback's state is in every checkpoint: after a restart it continues where it was. An
// exception from it ends the training.
class Callback {
 public:
  virtual ~Callback() = default;
  // The name in checkpoints. Callbacks with the same name are told apart by their order.
  virtual std::string name() const = 0;

  // After resuming. Called again in the same process when the training goes on after the loss of a
  // worker, with another group: make here what holds the group.
  virtual void on_fit_start(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  virtual void on_train_epoch_start(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // After each update.
  virtual void on_train_batch_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // metrics() has the validation's.
  virtual void on_validation_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // metrics() has the epoch's, and those of a validation at its end.
  virtual void on_train_epoch_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}
  // On rank 0 alone, so without collectives. A checkpoint of place() has held the training up for
  // so long; nobody can load it yet.
  virtual void on_checkpoint(Trainer& /*trainer*/, double /*seconds*/) {}
  // The same: the checkpoint of a step that may be long past is on the disk; writing it has taken
  // so long. After a resumption, this may come again for the checkpoint before it.
  virtual void on_checkpoint_written(Trainer& /*trainer*/, std::int64_t /*step*/,
                                     double /*seconds*/) {}
  virtual void on_fit_end(Trainer& /*trainer*/, TrainerModule& /*module*/) {}

  virtual nlohmann::json state() const { return nullptr; }
  virtual void load_state(const nlohmann::json& /*saved*/) {}
};

}  // namespace ddp
