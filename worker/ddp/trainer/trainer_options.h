#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/ddp/trainer/amount.h"
#include "worker/ddp/trainer/callback.h"
#include "worker/ddp/trainer/logger.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Lightning's names and, unless said otherwise, its defaults and meanings. The same on all ranks.
struct TrainerOptions {
  std::string accelerator = "auto";  // "cpu", "gpu" (or "cuda"); "auto": gpu if there is one.
  // Workers per node. 0: as many as the launcher has started; without a launcher one, or one per
  // gpu. A program that was started alone and asks for more starts itself under ddp-run.
  int devices = 0;
  int num_nodes = 0;  // 0: as many as the launcher has.
  // For a job that the program starts itself, as above or as tasks of srun: how often it goes on
  // after losing workers.
  int max_restarts = 3;
  // "ddp":      gradients are averaged during backward.
  // "ddp_step": at the optimizer's step.
  // "zero1":    as ddp; each rank keeps and updates a part of the optimizer's state.
  // "dp":       one process, DataParallel over the devices.
  // "single":   one process, one device.
  std::string strategy = "ddp";
  // "32-true" (or "32"), "64-true" ("64"), "bf16-true": the type of everything; "bf16-mixed":
  // forward and backward in bfloat16, with ddp, zero1 and single.
  std::string precision = "32-true";

  std::int64_t max_epochs = -1;  // -1: 1000, or as many as max_steps takes.
  std::int64_t max_steps = -1;   // Updates; -1: no limit.
  std::int64_t accumulate_grad_batches = 1;
  double gradient_clip_val = 0;  // Of the gradients' norm; 0: none.

  // Training batches between validations; a part is of an epoch. With accumulation: after the
  // update to which the batch belongs.
  Amount val_check_interval = 1.0;
  std::int64_t check_val_every_n_epoch = 1;
  Amount limit_train_batches = 1.0;  // Of an epoch; rounded up to whole updates.
  Amount limit_val_batches = 1.0;
  Amount limit_test_batches = 1.0;
  Amount limit_predict_batches = 1.0;

  std::vector<std::shared_ptr<Callback>> callbacks = {};
  std::shared_ptr<Logger> logger = nullptr;  // Null: metrics.jsonl in default_root_dir.
  std::int64_t log_every_n_steps = 50;
  bool enable_progress_bar = true;

  // Shared by all nodes. Here are the checkpoints from which fit() resumes, what callbacks save,
  // and metrics.jsonl. Empty: nothing is written, and a training that is interrupted is lost.
  std::string default_root_dir = {};
  std::int64_t checkpoint_every_n_steps = 0;  // Beside those at the ends of epochs; 0: none.
  int keep_checkpoints = 3;

  bool deterministic = false;  // LibTorch's deterministic algorithms.
  // Each rank's generator (dropout, augmentation) begins fit() with seed + rank.
  std::uint64_t seed = 0;
  std::string comm_hook = {};  // Of the reductions: "fp16", "powersgd:2", as ddp-train's flag.
  std::shared_ptr<ProcessGroup> group = nullptr;  // Null: init_distributed()'s.
};

}  // namespace ddp
