#include "common/wire/stream_frame.h"

#include <cstddef>

namespace ddp::wire {
namespace {

constexpr std::size_t kNumberBytes = 4;
constexpr std::size_t kHeaderBytes = 1 + kNumberBytes;

void append(std::string& out, std::uint32_t number) {
  for (std::size_t i = 0; i < kNumberBytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xFF);
}

std::uint32_t number_in(std::string_view bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < kNumberBytes; ++i)
    number |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return number;
}

}  // namespace

std::string encode(const StreamFrame& frame) {
  std::string out;
  out.reserve(kHeaderBytes + frame.bytes.size() + kNumberBytes);
  out += static_cast<char>(frame.kind);
  append(out, frame.stream);
  if (frame.kind == StreamFrame::Kind::kTaken) append(out, frame.taken);
  out += frame.bytes;
  return out;
}

Result<StreamFrame> decode_stream_frame(std::string_view payload) {
  using Kind = StreamFrame::Kind;
  const auto malformed = [&] {
    return make_error(Errc::kProtocol, "{} bytes that are no frame of a stream", payload.size());
  };
  if (payload.size() < kHeaderBytes) return malformed();
  StreamFrame frame;
  frame.kind = static_cast<Kind>(payload[0]);
  frame.stream = number_in(payload.substr(1));
  const std::string_view rest = payload.substr(kHeaderBytes);
  switch (frame.kind) {
    case Kind::kOpen:
    case Kind::kClose:
      if (!rest.empty()) return malformed();
      return frame;
    case Kind::kData:
      if (rest.empty() || rest.size() > kStreamPiece) return malformed();
      frame.bytes = rest;
      return frame;
    case Kind::kTaken:
      if (rest.size() != kNumberBytes) return malformed();
      frame.taken = number_in(rest);
      if (frame.taken > kStreamWindow) return malformed();
      return frame;
  }
  return malformed();
}

}  // namespace ddp::wire
