#pragma once

#include "worker/train/flag_values.h"
#include "worker/train/options.h"

namespace ddp::train {

// What values mean together: fills in the defaults that depend on others, and throws BadValue for
// flags that contradict each other or have nothing to act on.
void check_together(const FlagValues& values, Options& options);

}  // namespace ddp::train
