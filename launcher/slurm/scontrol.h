#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/slurm/step/step.h"

// Calls of SLURM's scontrol, for what only SLURM can do or knows. Each call runs the program, which
// takes milliseconds, and at most a minute. If the program is missing, for example in a container,
// the call returns an error or nothing. The process must have no handler for SIGCHLD.
namespace ddp::slurm {

// Requeues the job. SLURM ends this run's processes as soon as it has accepted the request. The
// error is scontrol's own message.
Result<void> requeue(const Step& step);

// When the job's time ends, in seconds since 1970, for versions of SLURM that do not put it into
// the environment.
std::optional<std::int64_t> ask_end_time(const Step& step);

// The address at which the other nodes reach `node`, for clusters whose names no name service
// knows; empty if scontrol does not know it.
std::string ask_node_address(const std::string& node);

// The socket of the MUNGE that SLURM itself uses, from SLURM's configuration (AuthInfo); empty if
// it names none.
std::string ask_munge_socket();

// The value of NAME=value in a line of `scontrol show -o`; empty if there is no such field.
std::string_view field_of(std::string_view line, std::string_view name);
// The socket in the line `AuthInfo = socket=PATH` of `scontrol show config`. In `config`, line
// breaks are replaced by blanks.
std::string munge_socket_in(std::string_view config);
// Parses "2026-11-22T12:34:56" in this machine's time zone, to seconds since 1970.
std::optional<std::int64_t> parse_time(const std::string& text);

}  // namespace ddp::slurm
