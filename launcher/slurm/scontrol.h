#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/slurm/step.h"

// What only SLURM's own program can do or knows. Each call starts it and waits for it, which takes
// milliseconds, and a minute at most; where it is missing, in a container for example, the call
// says so or gives nothing. The process must have no handler for SIGCHLD.
namespace ddp::slurm {

// Has the job started again. SLURM ends this run's processes as soon as it has taken the order. The
// error is scontrol's own words.
Result<void> requeue(const Step& step);

// When the job's time is over, in seconds since 1970, for versions of SLURM that do not say it in
// the environment.
std::optional<std::int64_t> ask_end_time(const Step& step);

// The address at which the other nodes reach this one, for clusters whose names no name service
// knows; empty if scontrol cannot say.
std::string ask_node_address(const std::string& node);

// Where the MUNGE that SLURM itself uses listens, as its configuration names it (AuthInfo); empty
// if it names none.
std::string ask_munge_socket();

// The value of NAME=value in a line of `scontrol show -o`; empty if it is not there.
std::string_view field_of(std::string_view line, std::string_view name);
// The socket in the line `AuthInfo = socket=PATH` of `scontrol show config`, whose line breaks have
// become blanks.
std::string munge_socket_in(std::string_view config);
// "2026-11-22T12:34:56" in this machine's time zone.
std::optional<std::int64_t> parse_time(const std::string& text);

}  // namespace ddp::slurm
