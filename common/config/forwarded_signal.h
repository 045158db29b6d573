#pragma once

#include <signal.h>

namespace ddp::config {

// If JobSpec::signals_from_launcher is set: the signal by which ddp-run forwards `number` to its
// agent. The same number would not do: the kernel keeps only one pending signal of a number, so a
// copy that another process sends to the agent could hide ddp-run's.
inline int forwarded_signal(int number) { return SIGRTMIN + number; }
// The signal that `number` stands for; `number` itself if it stands for none.
inline int signal_behind(int number) { return number >= SIGRTMIN ? number - SIGRTMIN : number; }

}  // namespace ddp::config
