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
// The processes of `keep` and their descendants stay untouched. Exit statuses of the children are
// lost, so a caller that wants one must wait for that child first. Blocks until the kernel has
// ended the processes (less than a millisecond if there are none), but never longer than `limit`.
// False if a process still lived then: one in uninterruptible sleep, or one to which this user may
// not send signals.
bool kill_descendants(const std::vector<pid_t>& keep = {}, Duration limit = Duration(2'000));

// The child of this process that has ended and that waitid() finds first; it is not reaped. 0 if
// there is none.
pid_t ended_child();

// The children of this process that live, except those of `keep`.
std::vector<pid_t> living_children(const std::vector<pid_t>& keep);

// The living descendants of this process that were started with `entry` (NAME=VALUE) in their
// environment. A process that is just starting may not have it yet.
std::vector<pid_t> descendants_with(std::string_view entry);

}  // namespace ddp
