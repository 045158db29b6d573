#include "worker/ddp/trainer/throughput_monitor.h"

#include "worker/ddp/trainer/trainer.h"

namespace ddp {

void ThroughputMonitor::on_train_batch_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (!trainer.logs_this_step()) return;
  trainer.log_metrics({{"samples_per_second", trainer.throughput().recent()},
                       {"round", static_cast<double>(trainer.group()->round())},
                       {"restarts", static_cast<double>(trainer.restarts())}});
}

void ThroughputMonitor::on_checkpoint(Trainer& trainer, double seconds) {
  trainer.log_metrics({{"checkpoint_seconds", seconds}});
}

void ThroughputMonitor::on_checkpoint_written(Trainer& trainer, std::int64_t step, double seconds) {
  trainer.log_late(step, "checkpoint_write_seconds", seconds);
}

}  // namespace ddp
