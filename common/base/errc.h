#pragma once

#include <string>
#include <system_error>

namespace ddp {

// The kind of an expected failure. Callers decide by it; the message of Error is for people.
enum class Errc {
  kInvalidArgument = 1,  // The input is wrong: the same input will fail again.
  kTimeout,              // A deadline passed.
  kPeerLost,             // The other side is gone: its connection closed or its process died.
  kProtocol,             // Bytes that the protocol does not allow.
  kStale,                // It belongs to a round that is over.
  kAborted,              // The operation was aborted; the message says by whom and why.
  kNotFound,             // No such key, file or program.
  kExists,               // It is there already, or the address is in use.
  kCorrupt,              // Stored bytes fail their checksum or their format.
  kIo,                   // The operating system refused; the message carries errno's text.
  kMismatch,             // Ranks disagree about what they are doing together.
};

std::error_code make_error_code(Errc code);

// errno as an error_code of the system category.
std::error_code errno_code(int error_number);

}  // namespace ddp

template <>
struct std::is_error_code_enum<ddp::Errc> : std::true_type {};
