#pragma once

// What programs without LibTorch get from ddp::runtime: the process group of this worker, and the
// channel to its agent.
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"
