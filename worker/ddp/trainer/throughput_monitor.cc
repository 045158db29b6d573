#include "worker/ddp/trainer/throughput_monitor.h"

#include "worker/ddp/trainer/trainer.h"

namespace ddp {

void ThroughputMonitor::on_train_batch_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (!trainer.logs_this_step()) return;
  trainer.log_metrics({{"samples_per_second", trainer.throughput().recent()},
                       {"round", static_cast<double>(trainer.group()->round())}});
}

}  // namespace ddp
