#pragma once

#include "worker/runtime/elastic_worker.h"

namespace ddp::python {

// This process's part in a job of ddp-run: the channel to its agent, and the rounds. Made at the
// first call, and kept until the process ends. Any thread; the GIL must not be held.
//
// The first call also tells the agent whether this process goes on from round to round. So a later
// call with goes_on, after one without, throws std::logic_error.
ElasticWorker& process_worker(bool goes_on);
// Its channel. Without an agent, one that does nothing.
ControlChannel& process_channel();
// Null before the first call of process_worker(), which a process without an agent never makes.
ElasticWorker* made_worker();

// On this signal the process writes its Python stacks to its standard error. Call it before the
// first process_worker(), which tells the agent.
void set_stack_signal(int number);

}  // namespace ddp::python
