#pragma once

#include <sys/types.h>

#include <string_view>
#include <vector>

#include "common/base/clock.h"

namespace ddp {

// Kills (SIGKILL) every descendant of this process and reaps those that are its children, again and
// again until none is left: children, what they started, and what moved to a group or session of
// its own. Complete only if this process is a child subreaper (PR_SET_CHILD_SUBREAPER), because the
// orphans of a dead child otherwise go to init.
//
// The processes of `keep` and everything below them stay untouched. Exit statuses of the children
// are lost, so a caller that wants one waits for that child first. Blocks, usually for less than a
// millisecond if nothing is left and for as long as the kernel takes to tear processes down
// otherwise; never longer than `limit`. False if something still lived then (a process in
// uninterruptible sleep, or one whose signals this user may not send).
bool kill_descendants(const std::vector<pid_t>& keep = {}, Duration limit = Duration(2'000));

// The children of this process that live, except those of `keep`.
std::vector<pid_t> living_children(const std::vector<pid_t>& keep);

// The living descendants of this process that were started with `entry` (NAME=VALUE) in their
// environment. A process that is just being started may not have it yet.
std::vector<pid_t> descendants_with(std::string_view entry);

}  // namespace ddp
