#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/hooks/model_averager.h"
#include "worker/runtime/process_group.h"

// Communication hooks by their names, as users write them on command lines:
//
//   allreduce            fp16+powersgd:rank=2,start_iter=10
//
// A name, perhaps with fp16+ or bf16+ (compress_wrapper.h) before it, and key=value after a colon.
// PyTorch's names of options are keys too (matrix_approximation_rank=2).
namespace ddp {

// A line for each hook: its name, its keys and their defaults.
std::string comm_hook_help();

// Throws std::invalid_argument for an unknown hook, an unknown or repeated key, or an invalid
// value; the message lists the valid ones. Local: for programs that read their options before they
// have a group.
void check_comm_hook_text(std::string_view text);

// The hook with a fresh state. Throws as check_comm_hook_text does. Collective for post_localsgd,
// which makes subgroups.
std::shared_ptr<CommHook> make_comm_hook_from_text(std::string_view text,
                                                   std::shared_ptr<ProcessGroup> group);

// The averager that must run after each optimizer step for this hook: for post_localsgd, with its
// start_iter as warm-up; null for all others. Collective. Throws as check_comm_hook_text does, and
// for a hierarchy that does not fit the group.
std::shared_ptr<ModelAverager> make_model_averager_from_text(std::string_view text,
                                                             std::shared_ptr<ProcessGroup> group);

}  // namespace ddp
