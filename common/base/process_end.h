#pragma once

namespace ddp {

// Whether the process behind this pidfd has ended, reaped or not. Returns at once; any thread.
//
// What asio's async_wait() on a pidfd needs before it is believed: asio keeps the state of a closed
// descriptor for the next one, and an event that was queued for the old one completes a wait on the
// new one. For a pipe that is a read of nothing; for a process, a waitpid() that blocks the loop,
// or a life that is taken for over.
bool has_ended(int pidfd);

}  // namespace ddp
