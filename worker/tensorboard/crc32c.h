#pragma once

#include <cstdint>
#include <string_view>

namespace ddp::tensorboard {

// CRC-32C (Castagnoli), as iSCSI has it (RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);

// The form in which records keep it: rotated and added to, since the checksum of bytes that contain
// their own checksum tells little.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace ddp::tensorboard
