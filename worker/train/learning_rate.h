#pragma once

#include <cstdint>

#include "worker/train/options.h"

namespace ddp::train {

// The learning rate of a step. It depends only on the options and on where in the training the step
// is, so a resumed run has the rates of an uninterrupted one, even with another world size.
//
// `epoch` counts from 0. `done` is the fraction of the epoch's samples that have been used after
// the step, in (0, 1]. `base` is the rate that the schedule begins from.
//
//   constant            base
//   step                base / factor ^ (epoch / decay_epochs), with an integer division
//   warmup-exponential  in epochs that begin before the end of the warm-up, a straight line from 0
//                       to base at that end; afterwards like step. This is torch_xla's
//                       WarmupAndExponentialDecayScheduler.
double learning_rate(const Options& options, double base, std::int64_t epoch, double done);

}  // namespace ddp::train
