#pragma once

namespace ddp::daemon {

// The program ddp-rendezvous: serves store and coordinator on one port until SIGINT or SIGTERM
// comes, or looks into a store (`get`, `keys`). It is another name of ddp-run, which hosts the same
// daemon for its job. Returns the exit status; call it from main(), while there is one thread.
int run_daemon_program(int argc, char** argv);

}  // namespace ddp::daemon
