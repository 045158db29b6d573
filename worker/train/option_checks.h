#pragma once

#include "worker/train/option_values.h"
#include "worker/train/options.h"

namespace ddp::train {

// Checks the values together: fills in defaults that depend on other flags, and throws BadValue for
// flags that contradict each other or would have no effect.
void check_together(const OptionValues& values, Options& options);

}  // namespace ddp::train
