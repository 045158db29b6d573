#pragma once

#include <cstdint>

#include "worker/train/options.h"

namespace ddp::train {

// The learning rate of a step, a function of where in the training the step is and of nothing else:
// so a resumed run has the rates of one that was not interrupted, in a world of another size too.
//
// `epoch` counts from 0; `done` is the part of the epoch's samples that will have been used when
// the step is over, in (0, 1]. `base` is the rate that the schedule begins from.
//
//   constant            base
//   step                base / factor ^ (epoch / decay_epochs), in whole numbers
//   warmup-exponential  in the epochs that begin before the end of the warm-up, a straight line
//                       from 0 that reaches base there; then as step. torch_xla's
//                       WarmupAndExponentialDecayScheduler.
double learning_rate(const Options& options, double base, std::int64_t epoch, double done);

}  // namespace ddp::train
