#pragma once

#include <sys/types.h>

#include "common/base/clock.h"

namespace ddp::agent {

// A worker whose stacks are wanted.
struct StackSource {
  pid_t pid = 0;
  // On `signal`, the process `speaker` itself writes what its interpreter is doing to its standard
  // error (wire::Hello). It is the worker or one of its descendants; 0: there is none.
  pid_t speaker = 0;
  int signal = 0;
};

// Sends the speaker its signal and waits, up to kAskLimit, until it has written. Sends nothing to a
// process that does not catch the signal or is not of this worker. Blocks.
void ask_for_stacks(const StackSource& source);
inline constexpr Duration kAskLimit{3'000};

// Writes to the descriptor `out`, as text, what each thread of a process is doing: its name, its
// state, and its stack with the names of functions. A stack that several threads share is written
// once. Frames of an interpreter are its own, not the script's: ask_for_stacks().
//
// Needs libdw.so.1 (elfutils) at run time. Without it, or if this process may not trace the other
// one, only the threads and the reason are written. Each thread is stopped for a moment, one after
// the other. This may take seconds with large programs, and for ever if a thread hangs in the
// kernel. It may write much, and it changes the calling process. So call it in a process of its own
// (StackDump).
void write_stacks(pid_t pid, int out);

}  // namespace ddp::agent
