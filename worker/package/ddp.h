#pragma once

// All that LibTorch programs get from ddp::ddp. Each header is the manual of its part.
//
// ProcessGroup::from_environment() is the group of the workers that ddp-run started; alone, a
// program is a group of one, so the same program runs with and without ddp-run. For a model on CUDA
// devices a NcclGroup stands beside it for each (DistributedDataParallelOptions::device_groups).
#include "common/store/tcp_store.h"
#include "worker/ddp/checkpointer.h"
#include "worker/ddp/clip_grad.h"
#include "worker/ddp/comm_hook.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/distributed_optimizer.h"
#include "worker/ddp/elastic_state.h"
#include "worker/ddp/hooks/batched_power_sgd_hook.h"
#include "worker/ddp/hooks/compress_wrapper.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/hierarchical_model_averager.h"
#include "worker/ddp/hooks/model_averager.h"
#include "worker/ddp/hooks/post_local_sgd_hook.h"
#include "worker/ddp/hooks/post_local_sgd_optimizer.h"
#include "worker/ddp/hooks/power_sgd_hook.h"
#include "worker/ddp/hooks/quantization_hooks.h"
#include "worker/ddp/load_tensors.h"
#include "worker/ddp/logical_ranks.h"
#include "worker/ddp/logical_reducer.h"
#include "worker/ddp/mesh_reduce.h"
#include "worker/ddp/run_elastic.h"
#include "worker/ddp/tensor_collectives.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"
#include "worker/nccl/nccl_group.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/freed_memory.h"
#include "worker/runtime/init_process_group.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/spawn.h"
#include "worker/runtime/worker_environment.h"
