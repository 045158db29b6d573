#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/secret.h"

// The secret that the nodes of a job share. It lets the rendezvous tell them from strangers
// (common/wire/PROTOCOL.md, "Who may join"). It travels in a file, an environment or a pipe, never
// in arguments, which every user of a machine can read.
namespace ddp::config {

// A shorter token could be guessed by trying.
inline constexpr std::size_t kMinTokenBytes = 16;
inline constexpr std::size_t kMaxTokenBytes = 4'096;
// Where ddp-run and ddp-rendezvous look for it. Workers do not get it.
inline constexpr const char* kTokenVariable = "DDP_RDZV_TOKEN";

// A new one: 64 hexadecimal digits from the system's random numbers.
Secret make_token();

// Reads the text of a file or a variable. A line break at its end is not part of the token. The
// message of kInvalidArgument says what is wrong, without the text and without its source.
Result<Secret> parse_token(std::string_view text);

// kInvalidArgument, with the path in the message, if the file cannot be read or holds no token, if
// anybody but its owner may read or write it (ssh's rule for keys), or if its owner is neither this
// process's user nor root.
Result<Secret> read_token_file(const std::string& path);

// The token of a command's user: of `file`, the value of --rdzv-token-file, if it is there, else of
// kTokenVariable; empty if neither is. The message of kInvalidArgument begins with the flag or the
// variable.
Result<Secret> find_token(const std::optional<std::string>& file);

// Takes the token out of this process's environment, so that no child inherits it and the original
// text is no longer in /proc/PID/environ. Call after it was read, while there is one thread.
void forget_token_variable();

}  // namespace ddp::config
