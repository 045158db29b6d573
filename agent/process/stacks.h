#pragma once

#include <sys/types.h>

namespace ddp::agent {

// Writes what each thread of a process is doing to the descriptor `out`, as text: the threads with
// their names and states, and their stacks with the names of functions, those of threads with the
// same stack once. Frames of an interpreter are the interpreter's own, not the script's.
//
// Needs libdw.so.1 (elfutils) at run time; without it, or where this process may not look into the
// other one, the threads are listed and the reason is told. The threads are stopped for a moment
// each, one after the other. May take seconds with large programs, and for ever where a thread
// hangs in the kernel, and may write much: call it in a process of its own (StackDump), which it
// changes.
void write_stacks(pid_t pid, int out);

}  // namespace ddp::agent
