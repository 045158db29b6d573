#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

// What goes over a connection that carries many streams (PROTOCOL.md, "The workers' store
// traffic"). One per frame: kind, u8; number of the stream, u32 little-endian; the rest.
namespace ddp::wire {

// The first frame of such a connection, from the side that opens streams.
inline constexpr std::string_view kStoreStreams = R"({"type":"store_streams"})";

// How many bytes of one stream and direction may be under way before the receiver has taken them.
inline constexpr std::uint32_t kStreamWindow = 256u << 10;
// The most that one kData frame carries, so that other streams get their turn.
inline constexpr std::uint32_t kStreamPiece = 64u << 10;

struct StreamFrame {
  enum class Kind : std::uint8_t {
    kOpen = 1,   // A new stream; its number was not used before.
    kData = 2,   // `bytes` of the stream.
    kTaken = 3,  // The receiver has taken `taken` more bytes.
    kClose = 4,  // The sender sends and takes nothing more.
  };
  Kind kind = Kind::kOpen;
  std::uint32_t stream = 0;
  std::string_view bytes{};  // kData.
  std::uint32_t taken = 0;   // kTaken.
};

std::string encode(const StreamFrame& frame);
// kProtocol for anything else. `bytes` are a part of the payload.
Result<StreamFrame> decode_stream_frame(std::string_view payload);

}  // namespace ddp::wire
