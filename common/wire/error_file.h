#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The file in which a worker leaves its exception (TORCHELASTIC_ERROR_FILE), in torchelastic's
// form:
//
//   {"message": {"message": "ValueError: bad batch", "errorCode": 1,
//                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}
//
// or, from older programs, {"message": "text", "timestamp": 1700000000}.
namespace ddp::wire {

struct ErrorFile {
  std::string message;
  std::string callstack;     // Several lines; empty if there is none.
  std::int64_t time_ms = 0;  // Since the epoch; whole seconds, as in the file; 0: none.
  std::optional<int> exit_code = std::nullopt;  // A launcher adds it for the launcher above it.
  bool secondary = false;  // The cause lies with another rank. Only ours; others skip it.
};

// Every torchrun can read it. torchrun expects a callstack and shows it, so if there is none, the
// message stands in its place.
std::string encode_error_file(const ErrorFile& error);
// Takes any text; the message is empty if it has neither form. Returns what encode_error_file() was
// given, except the milliseconds of the time.
ErrorFile decode_error_file(std::string_view text);

}  // namespace ddp::wire
