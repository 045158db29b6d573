#include "worker/tensorboard/crc32c.h"

#include <bit>

#include <boost/crc.hpp>

namespace ddp::tensorboard {

std::uint32_t crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> sum;
  sum.process_bytes(bytes.data(), bytes.size());
  return static_cast<std::uint32_t>(sum.checksum());
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

}  // namespace ddp::tensorboard
