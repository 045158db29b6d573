#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp::wire {

// A frame is a u32 little-endian payload length and that many bytes. Rendezvous and control
// messages travel in frames.
inline constexpr std::size_t kFrameHeaderBytes = 4;
inline constexpr std::size_t kMaxFrameBytes = 16u << 20;

// First bytes an agent sends on a rendezvous connection, before its first frame, and the first
// bytes the daemon answers. 0xDD is neither an opcode of any c10d dialect nor a letter of HTTP, so
// one byte tells the three protocols apart.
inline constexpr std::string_view kRendezvousPreamble =
    "\xDD"
    "DPR\x01";
// What all versions of the preamble begin with. The version is the byte after it.
inline constexpr std::string_view kAnyPreamble = kRendezvousPreamble.substr(0, 4);

// What to tell people if the other end speaks `version` only, which this release does not know.
std::string unknown_version(unsigned char version);

std::string encode_frame(std::string_view payload);

// Cuts frames out of a byte stream. Not thread safe.
class FrameDecoder {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole payload; empty while it is incomplete; kProtocol if a length exceeds
  // kMaxFrameBytes (the stream is then unusable).
  Result<std::optional<std::string>> next();
  // Whether the stream so far ends with a whole frame, and next() has returned all frames.
  bool at_boundary() const { return read_ == buffer_.size(); }

 private:
  std::string buffer_;
  std::size_t read_ = 0;  // Invariant: read_ <= buffer_.size(); bytes before it are consumed.
};

}  // namespace ddp::wire
