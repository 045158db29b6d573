#pragma once

#include <signal.h>

namespace ddp::config {

// What ddp-run sends to its agent for a signal of its own where JobSpec::signals_from_launcher is
// set. The same number would not do: the kernel keeps one of a number at a time, so a copy that
// somebody else sends to the agent could take the place of ddp-run's.
inline int forwarded_signal(int number) { return SIGRTMIN + number; }
// Which signal it stands for; `number` itself where it stands for none.
inline int signal_behind(int number) { return number >= SIGRTMIN ? number - SIGRTMIN : number; }

}  // namespace ddp::config
