#pragma once

#include <cstddef>
#include <string>

namespace ddp {

// `bytes` bytes that nobody can guess, as hexadecimal digits.
std::string random_hex(std::size_t bytes);

}  // namespace ddp
