#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The file that a worker leaves its exception in (TORCHELASTIC_ERROR_FILE), in torchelastic's form:
//
//   {"message": {"message": "ValueError: bad batch", "errorCode": 1,
//                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}
//
// or, from older programs, {"message": "text", "timestamp": 1700000000}.
namespace ddp::wire {

struct ErrorFile {
  std::string message;
  std::string callstack;     // Several lines; empty where the language has none.
  std::int64_t time_ms = 0;  // Since the epoch, whole seconds as they stand in the file; 0: none.
  std::optional<int> exit_code = std::nullopt;  // A launcher adds it for the launcher above it.
};

// All torchruns can read it: they take the callstack for text, so where there is none the message
// stands in its place, which is what they show then.
std::string encode_error_file(const ErrorFile& error);
// Of whatever is in the file; an empty message where it has none of the two forms. What is encoded
// comes back, but for the time's milliseconds.
ErrorFile decode_error_file(std::string_view text);

}  // namespace ddp::wire
