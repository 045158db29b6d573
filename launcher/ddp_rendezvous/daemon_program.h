#pragma once

namespace ddp::daemon {

// What ddp-run does under its second name, ddp-rendezvous: it serves store and coordinator on one
// port until SIGINT or SIGTERM comes, or looks into a store (`get`, `keys`). Returns the exit
// status; call it from main(), while there is one thread.
int run_daemon_program(int argc, char** argv);

}  // namespace ddp::daemon
