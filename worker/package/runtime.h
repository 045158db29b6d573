#pragma once

// What programs without LibTorch get from ddp::runtime: the process group of this worker, the
// channel to its agent, and groups for CUDA memory over NCCL, whose ranks meet in the job's store.
#include "common/store/tcp_store.h"
#include "worker/nccl/nccl_group.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/freed_memory.h"
#include "worker/runtime/init_process_group.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/spawn.h"
#include "worker/runtime/trace_scope.h"
#include "worker/runtime/worker_environment.h"
