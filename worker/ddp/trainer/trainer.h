#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/data/throughput.h"
#include "worker/ddp/trainer/data_loader.h"
#include "worker/ddp/trainer/metrics.h"
#include "worker/ddp/trainer/trainer_module.h"
#include "worker/ddp/trainer/trainer_options.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The training loop of a TrainerModule, in the shape of Lightning's Trainer:
//
//   int main() {
//     ddp::Trainer trainer({.devices = 2, .max_epochs = 10, .default_root_dir = "run1"});
//     auto net = std::make_shared<Net>();
//     trainer.fit(net, {.dataset = train, .batch_size = 64, .shuffle = true},
//                 ddp::DataLoader{.dataset = valid, .batch_size = 250});
//   }
//
// Started by hand, this makes two workers on this node; under ddp-run or in a SLURM job it uses the
// workers that were started. With a default_root_dir, fit() resumes from the newest checkpoint
// there. Start it again after an interruption at any moment (ddp-run does so by itself): on the
// same number of ranks, the training ends with the bytes of an uninterrupted one. A finished
// training is not repeated.
//
// When a worker is lost during fit(), the other processes stay: they step back to the last commit
// (ElasticState) and go on with the worker that replaces the lost one, to the same bytes. With
// strategy "zero1", outside of fit(), and in a program's second fit() and later ones, all workers
// of the job start again instead, to the same bytes.
//
// During training, SIGUSR1 (to ddp-run or a worker) asks for a checkpoint after the update; SIGTERM
// asks for a checkpoint and then ends the process by that signal.
//
// Every sample of an epoch is used exactly once, also in evaluations, whatever the number of ranks:
// a last batch that is not full is not filled up.
//
// All ranks make the same calls, on the training thread. Errors are std::invalid_argument (options;
// the message says what is valid), std::logic_error (the module), std::runtime_error (files),
// CollectiveError (another rank), or what the module throws; the agent is told, and the other ranks
// are released.
class Trainer {
 public:
  // May not return: if the options ask for more workers than were started, ddp-run replaces this
  // process and starts the program again. So make the Trainer first in main().
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains, with rank 0's parameters and buffers at the beginning. The module is moved to the
  // rank's device and stays there.
  void fit(const std::shared_ptr<TrainerModule>& module, const DataLoader& train,
           const std::optional<DataLoader>& validation = {});

  // Returns the metrics that the module logs: means over all samples, the same on all ranks.
  // `from`: the checkpoint whose parameters and buffers the module takes first: "best" (of the
  // first ModelCheckpoint), "last" (in default_root_dir), a folder of checkpoints, or empty: as it
  // is (rank 0's).
  MetricValues validate(const std::shared_ptr<TrainerModule>& module, const DataLoader& data,
                        const std::string& from = {});
  MetricValues test(const std::shared_ptr<TrainerModule>& module, const DataLoader& data,
                    const std::string& from = {});
  // The rows that predict_step() gives for all samples, in the order of the data set (shuffle does
  // not count), on every rank.
  at::Tensor predict(const std::shared_ptr<TrainerModule>& module, const DataLoader& data,
                     const std::string& from = {});

  const TrainerOptions& options() const;
  const std::shared_ptr<ProcessGroup>& group();  // Collective, when it is first called.

  // For callbacks, and after fit().

  const TrainingPlace& place() const;
  // What the last validation gave, the last logged step's values, and at the end of an epoch its
  // means, under NAME_epoch.
  const MetricValues& metrics() const;
  const MetricValues& validation_metrics() const;
  // Whether fit() makes validations, though perhaps not in each epoch.
  bool validates() const;
  // This rank's values of log(..., {.prog_bar = true}).
  const MetricValues& progress_metrics() const;
  // Ends the training after this update and what belongs to it. Call it on all ranks.
  void stop(const std::string& reason);
  const std::string& stop_reason() const;
  // Whether metrics are logged in this update; log_metrics() gives more to the logger.
  bool logs_this_step() const;
  void log_metrics(const MetricValues& values);
  void log_late(std::int64_t step, const std::string& name, double value);  // The logger's.
  std::int64_t restarts() const;  // How often the job has started workers again so far.
  std::vector<double> learning_rates() const;  // Of the last update, by group.
  std::int64_t total_steps() const;
  std::int64_t total_epochs() const;
  double last_loss() const;  // This rank's.
  const Throughput& throughput() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
