#pragma once

#include <optional>

namespace ddp::daemon {

// ddp-rendezvous as a client: get and keys of one store, for people who look for the cause of a
// hang. Prints the result, or one line that says what is wrong, and returns the exit status.
// Returns nothing if the first argument is neither word.
std::optional<int> run_client_command(int argc, char** argv);

}  // namespace ddp::daemon
