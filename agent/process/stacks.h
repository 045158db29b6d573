#pragma once

#include <sys/types.h>

namespace ddp::agent {

// Writes to the descriptor `out`, as text, what each thread of a process is doing: its name, its
// state, and its stack with the names of functions. A stack that several threads share is written
// once. Frames of an interpreter are its own, not the script's.
//
// Needs libdw.so.1 (elfutils) at run time. Without it, or if this process may not trace the other
// one, only the threads and the reason are written. Each thread is stopped for a moment, one after
// the other. This may take seconds with large programs, and for ever if a thread hangs in the
// kernel. It may write much, and it changes the calling process. So call it in a process of its own
// (StackDump).
void write_stacks(pid_t pid, int out);

}  // namespace ddp::agent
