#include "common/wire/frame.h"

#include <fmt/format.h>

#include "common/base/release.h"

namespace ddp::wire {

std::string unknown_version(unsigned char version) {
  return fmt::format(
      "it speaks version {} of ddp-run's protocol, and ddp-run {} here knows versions 1 and 2; "
      "install the same release of ddp-run on all nodes",
      version, release());
}

std::string encode_frame(std::string_view payload) {
  DDP_CHECK(payload.size() <= kMaxFrameBytes, "frame of {} bytes, limit {}", payload.size(),
            kMaxFrameBytes);
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  for (unsigned shift = 0; shift < 32; shift += 8)
    frame.push_back(static_cast<char>((length >> shift) & 0xFF));
  frame.append(payload);
  return frame;
}

Result<std::optional<std::string>> FrameDecoder::next() {
  const std::size_t available = buffer_.size() - read_;
  if (available < kFrameHeaderBytes) return std::optional<std::string>{};
  std::uint32_t length = 0;
  for (unsigned i = 0; i < 4; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(buffer_[read_ + i])) << (8 * i);
  }
  if (length > kMaxFrameBytes) {
    return make_error(Errc::kProtocol, "frame of {} bytes announced, the limit is {}", length,
                      kMaxFrameBytes);
  }
  if (available < kFrameHeaderBytes + length) return std::optional<std::string>{};
  std::optional<std::string> payload = buffer_.substr(read_ + kFrameHeaderBytes, length);
  read_ += kFrameHeaderBytes + length;
  if (read_ == buffer_.size() || read_ > (1u << 16)) {
    buffer_.erase(0, read_);
    read_ = 0;
  }
  return payload;
}

}  // namespace ddp::wire
